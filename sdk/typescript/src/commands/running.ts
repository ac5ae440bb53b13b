/** A command whose output goes to all that have subscribed to it. */

import { clearTimeout, setTimeout } from "node:timers";

import { pieces, type Data } from "../data.js";
import { InUseError, InvalidArgumentError, NotFoundError, TimeoutError } from "../errors.js";
import type { Output } from "../protocol/call.js";
import { GRACE } from "./exec.js";
import { SIGKILL, type Exit, type Process } from "./process.js";

/** Takes an output at once; as much again comes when all sinks have called their `taken`. */
export type Sink = (output: Output, taken: () => void) => void;

/** Milliseconds after its time at which a command is given up: its sandbox may be paused. */
const OVERDUE = GRACE + 1000;

/** Most milliseconds of a timer of Node's. */
const MAX_TIMER = 2 ** 31 - 1;

export class Running {
  readonly process: Process;
  /** Its end, which nothing that does not read holds up. */
  readonly exited: Promise<Exit>;
  /** Its end, after all of its output was handed to sinks. */
  readonly ended: Promise<Exit>;
  /** When sinks hold it back no more. */
  readonly released: Promise<void>;
  /** Whether callers may write to its stdin. */
  readonly #hasStdin: boolean;
  readonly #sinks = new Set<Sink>();
  /** What was handed out, and not taken by all sinks yet. */
  readonly #held = new Set<Output>();
  #over: { exit: Exit } | { error: unknown } | undefined;
  #begin: (() => void) | undefined;
  #release: (() => void) | undefined;
  #isReleased = false;

  constructor(process: Process, hasStdin: boolean) {
    this.process = process;
    // A program that is done ends, whatever it has left in the background.
    process.goOnAlone();
    this.#hasStdin = hasStdin;
    const begun = new Promise<void>((resolve) => {
      this.#begin = resolve;
    });
    this.released = new Promise((resolve) => {
      this.#release = resolve;
    });
    this.exited = this.#watch();
    this.ended = this.#handOut(begun);
    // Those that wait are told.
    this.exited.catch(() => undefined);
    this.ended.catch(() => undefined);
  }

  get pid(): number {
    return this.process.pid;
  }

  /** How it ended, if it has. */
  get exit(): Exit | undefined {
    return this.#over !== undefined && "exit" in this.#over ? this.#over.exit : undefined;
  }

  get isReleased(): boolean {
    return this.#isReleased;
  }

  /** Its output is handed out from now on. */
  begin(): void {
    this.#begin?.();
  }

  /** Sinks hold it back no more, so that its end comes. */
  release(): void {
    this.#isReleased = true;
    this.begin();
    for (const output of this.#held) this.process.consumed(output);
    this.#held.clear();
    this.#release?.();
  }

  subscribe(sink: Sink): void {
    this.#sinks.add(sink);
  }

  /** Hands it nothing more. What it was handed, it must take all the same. */
  unsubscribe(sink: Sink): void {
    this.#sinks.delete(sink);
  }

  /**
   * Writes to its stdin.
   *
   * @throws InUseError if another client has it
   * @throws InvalidArgumentError if it was not started with one for callers
   * @throws NotFoundError if it has ended
   */
  async write(data: Data): Promise<void> {
    this.#checkStdin();
    if (this.exit !== undefined) throw new NotFoundError("the command has ended", { kind: "not_found" });
    if (this.#over !== undefined) await this.exited;
    for await (const piece of pieces(data)) await this.process.awaited(this.process.stdin.write(piece));
  }

  /** Ends its stdin. */
  async closeStdin(): Promise<void> {
    this.#checkStdin();
    await this.process.awaited(this.process.stdin.end());
  }

  /** Kills it; false if it has ended. */
  kill(): boolean {
    this.release();
    if (this.#over !== undefined) return false;
    this.process.kill();
    return true;
  }

  signal(signal: number): void {
    if (signal === SIGKILL) this.kill();
    else this.process.signal(signal);
  }

  #checkStdin(): void {
    if (this.process.isStdinTaken) {
      throw new InUseError("another client has the command's stdin, or it has none", { kind: "in_use" });
    }
    if (!this.#hasStdin) throw new InvalidArgumentError("the command was not started with `stdin: true`", { kind: "invalid" });
  }

  async #watch(): Promise<Exit> {
    const timers = this.#timers();
    try {
      const exit = await this.process.exit();
      this.#over = { exit };
      return exit;
    } catch (error) {
      this.#over = { error };
      throw error;
    } finally {
      timers.forEach(clearTimeout);
    }
  }

  /** The owner ends a command whose time is over; what is unread here, or a sandbox that stands still, must not hold that up. */
  #timers(): NodeJS.Timeout[] {
    const { timeout } = this.process;
    if (timeout === 0 || timeout + OVERDUE > MAX_TIMER) return [];
    const giveUp = (): void => {
      this.process.kill();
      this.process.close(new TimeoutError("the command's time was over", { kind: "timed_out" }));
    };
    return [setTimeout(() => this.release(), timeout).unref(), setTimeout(giveUp, timeout + OVERDUE).unref()];
  }

  async #handOut(begun: Promise<void>): Promise<Exit> {
    await begun;
    for await (const output of this.process.arrivals()) {
      const sinks = [...this.#sinks];
      let left = sinks.length + 1;
      const taken = (): void => {
        left -= 1;
        if (left === 0 && this.#held.delete(output)) this.process.consumed(output);
      };
      this.#held.add(output);
      for (const sink of sinks) sink(output, taken);
      taken();
      if (this.#isReleased) this.release();
    }
    return this.exited;
  }
}
