/** `mica serve --stdio`: one process for this one, made when it is needed. It ends with this process. */

import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";

import { HostError } from "./errors.js";
import { program } from "./program.js";
import { Connection } from "./protocol/connection.js";

/** A connection to `mica`. */
export interface Server {
  connection: Connection;
  /** The directory of all that mica keeps. */
  home: string;
}

let shared: Promise<Server> | undefined;
let pid: number | undefined;

/** The connection to `mica`, which runs from now on. */
export function server(): Promise<Server> {
  // What is asked of one that has died was asked of none; its end may be yet to be told.
  if (pid !== undefined && hasDied(pid)) shared = pid = undefined;
  const started = (shared ??= start(() => {
    if (shared === started) shared = undefined;
  }));
  return started;
}

async function start(onEnd: () => void): Promise<Server> {
  const mica = program();
  const child = spawn(mica, ["serve", "--stdio"], { stdio: ["pipe", "pipe", "inherit"] });
  pid = child.pid;
  let problem: Error | undefined;
  child.once("error", (error) => {
    problem = error;
  });
  // While nothing is asked of it, it does not keep this process alive.
  const parts = [child, child.stdin, child.stdout] as { ref?(): void; unref?(): void }[];
  const busy = (isBusy: boolean): void => parts.forEach((part) => (isBusy ? part.ref?.() : part.unref?.()));
  const connection = new Connection({ from: child.stdout, to: child.stdin, name: "mica", busy });
  connection.onEnd(onEnd);
  try {
    const hello = await connection.event("hello");
    busy(false);
    return { connection, home: String(hello["home"]) };
  } catch (error) {
    onEnd();
    if (problem === undefined) throw error;
    throw new HostError(`cannot start \`${mica}\`: ${problem.message}`, {
      kind: "host",
      hint: "put `mica` on PATH, or its path into $MICABOX_MICA",
      cause: problem,
    });
  }
}

/** Whether a child has ended, reaped or not. */
function hasDied(pid: number): boolean {
  try {
    // proc(5): the state is behind the name, which may have any characters.
    return /^.*\) [ZX] /s.test(readFileSync(`/proc/${pid}/stat`, "latin1"));
  } catch {
    return true;
  }
}
