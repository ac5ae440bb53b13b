/** A program that runs in a sandbox: its start, its streams, its end. */

import { DisconnectedError, ProtocolError } from "../errors.js";
import { connectOwner, type Owner, type OwnerConnection } from "../owner.js";
import type { Call, Output } from "../protocol/call.js";
import type { Connection } from "../protocol/connection.js";
import type { Input } from "../protocol/input.js";
import type { Shared } from "../shared.js";
import type { Socket } from "node:net";

/** How it ended. */
export interface Exit {
  /** The exit code, or 128 and the signal. */
  code: number;
  /** The signal that ended it. */
  signal: number | undefined;
  /** Whether it ended because its time was over. */
  timedOut: boolean;
}

export const SIGKILL = 9;

export class Process {
  readonly pid: number;
  /** Milliseconds that it may take; 0 for no limit. */
  readonly timeout: number;
  readonly #call: Call;
  readonly #connection: Connection;
  readonly #socket: Socket;
  /** Whether others use the connection as well. */
  readonly #isShared: boolean;
  readonly #started = performance.now();
  /** Whether another client has its stdin, if it was attached to. */
  readonly isStdinTaken: boolean;
  /** How many wait for something of it. */
  #awaited = 0;
  #isAlone = false;

  private constructor(
    pid: number,
    call: Call,
    { connection, socket }: OwnerConnection,
    { timeout = 0, isStdinTaken = false, isShared = false }: { timeout?: number; isStdinTaken?: boolean; isShared?: boolean },
  ) {
    this.pid = pid;
    this.isStdinTaken = isStdinTaken;
    this.#isShared = isShared;
    this.#call = call;
    this.#connection = connection;
    this.#socket = socket;
    this.timeout = timeout;
  }

  /** Starts a program: `exec`'s fields, with outputs in frames. With `shared` on a connection that others have as well. */
  static async start(owner: Owner, exec: object, shared?: Shared): Promise<Process> {
    const kept = await shared?.connection();
    const made = kept ?? (await connectOwner(owner));
    let call: Call | undefined;
    try {
      call = made.connection.call({ type: "exec", stdout: "frames", stderr: "frames", ...exec });
      const { pid } = await call.answer("started");
      const { timeout } = exec as { timeout?: number };
      return new Process(Number(pid), call, made, { timeout: timeout ?? 0, isShared: kept !== undefined });
    } catch (error) {
      if (kept === undefined) made.connection.close();
      // The connection had ended before the request.
      else if (call === undefined ? made.connection.isOver : call.isUnsent) return Process.start(owner, exec);
      throw error;
    }
  }

  /** Attaches to a program that runs, whatever has started it. */
  static async attach(owner: Owner, pid: number): Promise<Process> {
    const made = await connectOwner(owner);
    try {
      const call = made.connection.call({ type: "attach", pid, stdin: "frames", stdout: "frames", stderr: "frames" });
      const { stdin } = await call.answer("attached");
      return new Process(pid, call, made, { isStdinTaken: stdin !== true });
    } catch (error) {
      made.connection.close();
      throw error;
    }
  }

  get stdin(): Input {
    return this.#call.stdin;
  }

  /** Its outputs, for one reader; those that are not read hold the program back. */
  outputs(): AsyncGenerator<Output, void, undefined> {
    return this.#call.outputs();
  }

  /** Its outputs, for one reader, which says when each was consumed. */
  arrivals(): AsyncGenerator<Output, void, undefined> {
    return this.#call.arrivals();
  }

  /** Lets as much again come. */
  consumed(output: Output): void {
    this.#call.consumed(output);
  }

  /** Waits for its end, which comes after the last output, but not until that is read. */
  async exit(): Promise<Exit> {
    try {
      const { status, timed_out } = await this.#call.answer("exited");
      const { exited, signaled } = status as { exited?: number; signaled?: number };
      const isOver = this.timeout > 0 && performance.now() - this.#started >= this.timeout;
      const timedOut = timed_out === true || (signaled === SIGKILL && isOver);
      if (exited !== undefined) return { code: exited, signal: undefined, timedOut };
      if (signaled !== undefined) return { code: 128 + signaled, signal: signaled, timedOut };
      throw new ProtocolError("a program ended without an exit status");
    } finally {
      this.close();
    }
  }

  /** Sends it a signal. */
  signal(signal: number): void {
    this.#call.send({ type: "signal", signal });
  }

  kill(): void {
    this.signal(SIGKILL);
  }

  /** Its terminal has another size. */
  resize(size: { rows: number; columns: number }): void {
    this.#call.send({ type: "resize", ...size });
  }

  /** Keeps this process alive from now on only while something is awaited. */
  goOnAlone(): void {
    if (this.#awaited === 0) this.#socket.unref();
    this.#isAlone = true;
  }

  /** What the caller waits for: this process lives as long. */
  async awaited<T>(work: Promise<T>): Promise<T> {
    this.#awaited += 1;
    this.#socket.ref();
    try {
      return await work;
    } finally {
      this.#awaited -= 1;
      if (this.#awaited === 0 && this.#isAlone) this.#socket.unref();
    }
  }

  /** Ends the connection, unless others use it, and the program if it runs and was started here. `exit` has this error. */
  close(error?: Error): void {
    if (!this.#isShared) {
      this.#connection.close(error);
    } else if (!this.#call.isOver) {
      this.kill();
      this.#call.over(error ?? new DisconnectedError("the operation was ended", { kind: "disconnected" }));
    }
  }
}
