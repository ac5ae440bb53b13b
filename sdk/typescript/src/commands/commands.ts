/** Commands in a sandbox. */

import { setTimeout as sleep } from "node:timers/promises";

import { checkSignal, unlessAborted } from "../cancel.js";
import { feed, pieces, type Data } from "../data.js";
import { CommandStartError, NotFoundError, ProtocolError, SandboxError } from "../errors.js";
import type { Owner } from "../owner.js";
import { MAX_U16, MAX_U32, whole } from "../protocol/number.js";
import type { Defaults, ExecOptions } from "./exec.js";
import { CommandExitError, CommandHandle, type CommandResult, type HandleOptions } from "./handle.js";
import { Process } from "./process.js";
import { Running } from "./running.js";

/** How a command is started. */
export interface CommandStartOptions extends ExecOptions, HandleOptions {
  /** Returns a handle of the command, once it runs, in place of its result. */
  background?: boolean;
  /** `true` for `sendStdin`; or what is written to stdin, which then ends. Empty unless given. */
  stdin?: boolean | Data;
  /** The command continues when this process ends, if the sandbox does: for detached ones. */
  detach?: boolean;
}

/** A process in a sandbox. */
export interface ProcessInfo {
  /** Its process ID in the sandbox. */
  pid: number;
  /** The parent's process ID. */
  parent: number;
  /** Its user ID in the sandbox. */
  uid: number;
  /** The kernel's letter: `R`, `S`, `Z` and so on. */
  state: string;
  /** Seconds of processor time. */
  cpuTime: number;
  /** Bytes of resident memory. */
  memory: number;
  /** Its arguments, with blanks between them; the program's name if it has none. */
  cmd: string;
}

/** The agent's list of processes. */
const PROCESSES = "\0processes";
export const ANSWER_TIMEOUT = 60_000;
const MAX_LIST = 16 << 20;
const TICKS = 100;

/** Milliseconds until a process that was sent SIGKILL is gone. */
const KILL_TIMEOUT = 1000;

/** Commands of a sandbox. */
export class Commands {
  readonly #owner: Owner;
  readonly #defaults: Defaults;
  /** Those that were started or attached to here and have not ended. */
  readonly #running = new Map<number, Running>();

  constructor(owner: Owner, defaults: Defaults) {
    this.#owner = owner;
    this.#defaults = defaults;
  }

  /**
   * Runs a shell's command line, or a program with its arguments.
   *
   * @throws CommandExitError if its exit code is not 0, unless it is in the background
   */
  run(cmd: string | readonly string[], opts: CommandStartOptions & { background: true }): Promise<CommandHandle>;
  run(cmd: string | readonly string[], opts?: CommandStartOptions & { background?: false }): Promise<CommandResult>;
  run(cmd: string | readonly string[], opts?: CommandStartOptions): Promise<CommandHandle | CommandResult>;
  async run(cmd: string | readonly string[], opts: CommandStartOptions = {}): Promise<CommandHandle | CommandResult> {
    const argv = typeof cmd === "string" ? ["/bin/sh", "-c", cmd] : cmd;
    const handle = await this.start(argv, opts, {});
    return opts.background === true ? handle : handle.wait();
  }

  /** Starts a program, with more fields of `exec`. */
  async start(argv: readonly string[], opts: CommandStartOptions, more: object): Promise<CommandHandle> {
    const { stdin = false, signal } = opts;
    checkSignal("the command", signal);
    const source = typeof stdin === "boolean" ? undefined : pieces(stdin);
    const exec = {
      ...this.#defaults.exec(argv, opts),
      stdin: stdin === false ? "null" : "frames",
      detach: opts.detach === true,
      ...more,
    };
    const starting = Process.start(this.#owner, exec);
    const process = await unlessAborted("the command", signal, starting).catch((error: unknown) => {
      starting.then(discard, () => undefined);
      throw error;
    });
    const handle = new CommandHandle(this.#hold(process, stdin === true), opts);
    if (source !== undefined) {
      process.awaited(feed(source, process.stdin)).catch((error: unknown) => {
        // Half of stdin is not what the command was to be given.
        if (handle.exitCode === undefined) handle.fail(error);
      });
    }
    return handle;
  }

  /** All processes in the sandbox. */
  async list(): Promise<ProcessInfo[]> {
    const process = await Process.start(this.#owner, { argv: [PROCESSES], answer_timeout: ANSWER_TIMEOUT });
    try {
      const said: Uint8Array[] = [];
      let size = 0;
      for await (const { stream, data } of process.outputs()) {
        if (stream === "stdout") said.push(data);
        if ((size += data.length) > MAX_LIST) throw new ProtocolError("the guest's list of processes has no end");
      }
      await process.exit();
      // The first line has the uptime.
      return Buffer.concat(said).toString("utf8").split("\n").slice(1).filter(Boolean).map(parse);
    } finally {
      process.close();
    }
  }

  /**
   * Kills a process; false if there is none.
   *
   * @throws SandboxError if it is still there, such as the sandbox's first one
   */
  async kill(pid: number): Promise<boolean> {
    const running = this.#running.get(pid);
    if (running !== undefined) return running.kill();
    if (!(await this.#isThere(pid))) return false;
    try {
      await this.run(`kill -9 ${pid}`, { user: "0", timeoutMs: ANSWER_TIMEOUT });
    } catch (error) {
      if (!(error instanceof CommandExitError || error instanceof CommandStartError)) throw error;
      if (!(await this.#isThere(pid))) return false;
      throw error;
    }
    for (const end = performance.now() + KILL_TIMEOUT; await this.#isThere(pid); await sleep(10)) {
      if (performance.now() > end) throw new SandboxError(`process ${pid} was sent SIGKILL, and is still there`);
    }
    return true;
  }

  /**
   * Another handle of a command that runs, whatever program has started it: its output from now on, its end,
   * and its stdin if no other program has it. What it wrote while it had no reader is lost.
   *
   * @throws NotFoundError if no command with this process ID runs
   */
  async connect(pid: number, opts: HandleOptions = {}): Promise<CommandHandle> {
    const running = this.#running.get(pid) ?? this.#hold(await Process.attach(this.#owner, whole("a process ID", pid, 0, MAX_U32)), true);
    return new CommandHandle(running, opts);
  }

  /** Writes to the stdin of a command that was started here with `stdin: true`. */
  async sendStdin(pid: number, data: Data): Promise<void> {
    await this.#started(pid).write(data);
  }

  /** Ends its stdin. */
  async closeStdin(pid: number): Promise<void> {
    await this.#started(pid).closeStdin();
  }

  /** The terminal of a command that was started here has another size. */
  async resize(pid: number, size: { rows: number; cols: number }): Promise<void> {
    this.#started(pid).process.resize(terminalSize(size));
  }

  /** Whether there is such a process, and not only its exit code. */
  async #isThere(pid: number): Promise<boolean> {
    return (await this.list()).some((one) => one.pid === pid && one.state !== "Z");
  }

  #hold(process: Process, hasStdin: boolean): Running {
    const running = new Running(process, hasStdin);
    this.#running.set(running.pid, running);
    const forget = (): void => {
      if (this.#running.get(running.pid) === running) this.#running.delete(running.pid);
    };
    running.exited.then(forget, forget);
    return running;
  }

  #started(pid: number): Running {
    const running = this.#running.get(pid);
    if (running !== undefined) return running;
    throw new NotFoundError(`no command with PID ${pid} runs that was started here`, { kind: "not_found" });
  }
}

/** A terminal's size, as the protocol has it. */
export function terminalSize({ rows, cols }: { rows: number; cols: number }): { rows: number; columns: number } {
  return { rows: whole("rows", rows, 0, MAX_U16), columns: whole("cols", cols, 0, MAX_U16) };
}

/** Ends a command that nothing has a handle of. */
function discard(process: Process): void {
  process.kill();
  process.close();
}

/** PID, parent, user, state, terminal, ticks, start, KiB, and the arguments. */
function parse(line: string): ProcessInfo {
  const words = line.split(" ");
  const [pid = NaN, parent = NaN, uid = NaN, ticks = NaN, resident = NaN] = [0, 1, 2, 5, 7].map((at) => Number(words[at]));
  if (![pid, parent, uid, ticks, resident].every(Number.isSafeInteger)) {
    throw new ProtocolError("the guest's list of processes is malformed");
  }
  const [state = "", cmd] = [words[3], words.slice(8).join(" ")];
  return { pid, parent, uid, state, cpuTime: ticks / TICKS, memory: resident * 1024, cmd };
}
