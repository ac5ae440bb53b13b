/** Terminals in a sandbox. */

import type { Data } from "../data.js";
import { terminalSize, type Commands } from "./commands.js";
import type { ExecOptions } from "./exec.js";
import type { CommandHandle } from "./handle.js";

/** The size of a terminal. */
export interface PtySize {
  /** Lines. */
  rows: number;
  /** Columns. */
  cols: number;
}

/** What becomes of a terminal's output. */
export interface PtyConnectOptions {
  /** Called with the terminal's output; a promise holds the next one back. */
  onData: (data: Uint8Array) => void | Promise<void>;
}

/** How a program is started on a terminal. */
export interface PtyCreateOptions extends PtySize, PtyConnectOptions, ExecOptions {
  /** What runs there: an interactive shell unless given, bash if it is there. */
  cmd?: readonly string[];
  /** Kills the program. Default: nothing does. */
  signal?: AbortSignal;
}

const SHELL = ["/bin/sh", "-c", "command -v bash >/dev/null && exec bash -il; exec sh -i"];

/** Terminals of a sandbox. */
export class Pty {
  readonly #commands: Commands;

  constructor(commands: Commands) {
    this.#commands = commands;
  }

  /** Starts a program on a terminal. */
  async create({ rows, cols, onData, cmd = SHELL, ...exec }: PtyCreateOptions): Promise<CommandHandle> {
    const options = { ...exec, stdin: true, capture: false, onOutput: onOutput(onData) };
    return this.#commands.start(cmd, options, { tty: terminalSize({ rows, cols }) });
  }

  /** Another handle of a terminal's program that was started here, with its output from now on. */
  connect(pid: number, { onData }: PtyConnectOptions): Promise<CommandHandle> {
    return this.#commands.connect(pid, { capture: false, onOutput: onOutput(onData) });
  }

  /** Types. */
  sendInput(pid: number, data: Data): Promise<void> {
    return this.#commands.sendStdin(pid, data);
  }

  /** The terminal has another size. */
  resize(pid: number, size: PtySize): Promise<void> {
    return this.#commands.resize(pid, size);
  }

  /** Kills the program; false if there is none. */
  kill(pid: number): Promise<boolean> {
    return this.#commands.kill(pid);
  }
}

function onOutput(onData: PtyConnectOptions["onData"]): (output: { data: Uint8Array }) => void | Promise<void> {
  return ({ data }) => onData(data);
}
