/** What tests share: sandboxes on this machine's own kernel, and `mica` to look at them from outside. */

import { execFile } from "node:child_process";
import { readdir, readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";

import { Sandbox, type SandboxOptions } from "../src/index.js";
import { checkAll } from "./schema.js";

checkAll();

/** Made by scripts/test-typescript in the tests' own store. */
export const IMAGE = "sample";

/** Makes a sandbox in a few milliseconds; its commands are root's. */
export function hostBox(opts: SandboxOptions = {}): Promise<Sandbox> {
  return Sandbox.create(IMAGE, { backend: "host", net: "none", user: "root", ...opts });
}

/** Runs `mica`; its stdout. */
export async function micaSays(...args: string[]): Promise<string> {
  const { stdout } = await promisify(execFile)(process.env["MICABOX_MICA"] ?? "mica", args);
  return stdout;
}

/** The states of sandboxes by ID, as `mica ps` lists them. */
export async function listed(): Promise<Map<string, string>> {
  const all = JSON.parse(await micaSays("ps", "--all", "--json")) as { id: string; state: string }[];
  return new Map(all.map(({ id, state }) => [id, state]));
}

/** The processes of this machine. */
export async function processes(): Promise<{ pid: number; parent: number; args: string[] }[]> {
  const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name));
  const read = (pid: string, file: string): Promise<string> => readFile(`/proc/${pid}/${file}`, "utf8").catch(() => "");
  const one = async (pid: string): Promise<{ pid: number; parent: number; args: string[] }> => ({
    pid: Number(pid),
    parent: Number(/^PPid:\t(\d+)$/m.exec(await read(pid, "status"))?.[1]),
    args: (await read(pid, "cmdline")).split("\0"),
  });
  return Promise.all(pids.map(one));
}

/** Milliseconds that only a hang takes. */
export const PATIENCE = 300_000;

/** Waits until this holds. */
export async function until(what: string, holds: () => boolean | Promise<boolean>): Promise<void> {
  // Sleep: the interval between questions.
  for (const end = Date.now() + PATIENCE; Date.now() < end; await sleep(10)) {
    if (await holds()) return;
  }
  throw new Error(`never: ${what}`);
}

/** Bytes that no compression, and no mistake of a multiple of a window, makes the same. */
export function noise(size: number): Buffer {
  const bytes = Buffer.alloc(size);
  for (let at = 0, state = 1; at + 4 <= size; at += 4) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0;
    bytes.writeInt32LE(state, at);
  }
  return bytes;
}
