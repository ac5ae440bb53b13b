/** A program that runs in a sandbox: its start, its streams, its end. */

import { ProtocolError } from "../errors.js";
import { connectOwner, type Owner } from "../owner.js";
import type { Call, Output } from "../protocol/call.js";
import type { Connection } from "../protocol/connection.js";
import type { Input } from "../protocol/input.js";
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
  readonly #started = performance.now();
  /** Whether another client has its stdin, if it was attached to. */
  readonly isStdinTaken: boolean;
  /** How many wait for something of it. */
  #awaited = 0;
  #isAlone = false;

  private constructor(pid: number, call: Call, connection: Connection, socket: Socket, timeout: number, isStdinTaken: boolean) {
    this.pid = pid;
    this.isStdinTaken = isStdinTaken;
    this.#call = call;
    this.#connection = connection;
    this.#socket = socket;
    this.timeout = timeout;
  }

  /** Starts a program: `exec`'s fields, with outputs in frames. */
  static async start(owner: Owner, exec: object): Promise<Process> {
    const { connection, socket } = await connectOwner(owner);
    try {
      const call = connection.call({ type: "exec", stdout: "frames", stderr: "frames", ...exec });
      const { pid } = await call.answer("started");
      const { timeout } = exec as { timeout?: number };
      return new Process(Number(pid), call, connection, socket, timeout ?? 0, false);
    } catch (error) {
      connection.close();
      throw error;
    }
  }

  /** Attaches to a program that runs, whatever has started it. */
  static async attach(owner: Owner, pid: number): Promise<Process> {
    const { connection, socket } = await connectOwner(owner);
    try {
      const call = connection.call({ type: "attach", pid, stdin: "frames", stdout: "frames", stderr: "frames" });
      const { stdin } = await call.answer("attached");
      return new Process(pid, call, connection, socket, 0, stdin !== true);
    } catch (error) {
      connection.close();
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

  /** Ends the connection, and the program if it runs and was started here. `exit` has this error. */
  close(error?: Error): void {
    this.#connection.close(error);
  }
}
