/** The connection to a sandbox's owner that requests have in common, those that are over with their call. */

import { SandboxError } from "./errors.js";
import { connectOwner, type Owner, type OwnerConnection } from "./owner.js";

export const LIMITS = {
  /** Milliseconds after which a connection without requests is closed: nothing tells when a sandbox's object is gone. */
  idle: 10_000,
  /** Most connections without requests, as a process has a limit of descriptors. Each worker thread has its own. */
  count: 64,
};

/** They, the least recently used first. */
const idle = new Set<OwnerConnection>();

export class Shared {
  readonly #owner: Owner;
  #kept: Promise<OwnerConnection | undefined> | undefined;
  #timer: NodeJS.Timeout | undefined;

  constructor(owner: Owner) {
    this.#owner = owner;
  }

  /** The connection; undefined if the owner, of an earlier version, takes each for use of the sandbox. */
  async connection(): Promise<OwnerConnection | undefined> {
    for (;;) {
      const kept = (this.#kept ??= this.#connect());
      try {
        const found = await kept;
        if (found?.connection.isOver !== true) return found;
      } catch (error) {
        if (this.#kept === kept) this.#kept = undefined;
        throw error;
      }
      if (this.#kept === kept) this.#kept = undefined;
    }
  }

  /** Ends it. */
  close(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#kept?.then(
      (kept) => kept?.connection.close(),
      () => undefined,
    );
    this.#kept = undefined;
  }

  async #connect(): Promise<OwnerConnection | undefined> {
    const made = await connectOwner(this.#owner, (made, isBusy) => this.#busy(made, isBusy));
    made.connection.onEnd(() => idle.delete(made));
    try {
      await made.connection.ask({ type: "uncount" }, "uncounted");
      return made;
    } catch (error) {
      made.connection.close();
      if (error instanceof SandboxError && error.kind === "invalid") return undefined;
      throw error;
    }
  }

  /** Keeps this process alive while there are requests. */
  #busy(made: OwnerConnection, isBusy: boolean): void {
    idle.delete(made);
    if (isBusy) {
      made.socket.ref();
      return;
    }
    made.socket.unref();
    if (made.connection.isOver) return;
    idle.add(made);
    if (idle.size > LIMITS.count) [...idle][0]?.connection.close();
    this.#timer ??= setTimeout(() => this.#closeIdle(), LIMITS.idle).unref();
    this.#timer.refresh();
  }

  #closeIdle(): void {
    void this.#kept?.then(
      (kept) => kept !== undefined && idle.has(kept) && kept.connection.close(),
      () => undefined,
    );
  }
}
