/** A command whose output goes to all that have subscribed to it. */

import { pieces, type Data } from "../data.js";
import { InUseError } from "../errors.js";
import type { Output } from "../protocol/call.js";
import type { Exit, Process } from "./process.js";

/** Takes an output; the next one comes when it is done. */
export type Sink = (output: Output) => Promise<void>;

export class Running {
  readonly process: Process;
  /** When it has ended, and all its output was taken. */
  readonly ended: Promise<Exit>;
  readonly #sinks = new Set<Sink>();
  #exit: Exit | undefined;
  #begin: (() => void) | undefined;

  constructor(process: Process) {
    this.process = process;
    const begun = new Promise<void>((resolve) => {
      this.#begin = resolve;
    });
    this.ended = this.#run(begun);
    // Those that wait are told.
    this.ended.catch(() => undefined);
  }

  get pid(): number {
    return this.process.pid;
  }

  /** How it ended, if it has. */
  get exit(): Exit | undefined {
    return this.#exit;
  }

  /** Its output is read from now on. */
  begin(): void {
    this.#begin?.();
  }

  subscribe(sink: Sink): void {
    this.#sinks.add(sink);
    this.process.keepsAlive(true);
  }

  unsubscribe(sink: Sink): void {
    this.#sinks.delete(sink);
    if (this.#sinks.size === 0) this.process.keepsAlive(false);
  }

  /**
   * Writes to its stdin.
   *
   * @throws InUseError if another client has it
   */
  async write(data: Data): Promise<void> {
    if (this.process.isStdinTaken) {
      throw new InUseError("another client has the command's stdin, or it has none", { kind: "in_use" });
    }
    for await (const piece of pieces(data)) await this.process.stdin.write(piece);
  }

  async kill(): Promise<boolean> {
    if (this.#exit !== undefined) return false;
    this.begin();
    this.process.kill();
    return true;
  }

  async #run(begun: Promise<void>): Promise<Exit> {
    await begun;
    for await (const output of this.process.outputs()) {
      await Promise.all([...this.#sinks].map((sink) => sink(output)));
    }
    this.#exit = await this.process.exit();
    return this.#exit;
  }
}
