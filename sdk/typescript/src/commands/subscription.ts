/** The outputs of a command from now on, one at a time; what is not taken holds the command back. */

import type { Output } from "../protocol/call.js";
import { WINDOW } from "../protocol/connection.js";
import { Queue } from "../protocol/queue.js";
import type { Running, Sink } from "./running.js";

export class Subscription implements AsyncIterableIterator<Output> {
  readonly #running: Running;
  readonly #stream: Output["stream"] | undefined;
  readonly #queue = new Queue<{ output: Output; taken: () => void }>();
  readonly #keepsAlive: boolean;
  /** Bytes in the queue. */
  #unread = 0;

  /** Outputs of both streams, or of this one; until `givenUp` fails. Waiting for one keeps this process alive, unless it is said not to. */
  constructor(running: Running, givenUp: Promise<never>, { stream, keepsAlive = true }: { stream?: Output["stream"]; keepsAlive?: boolean } = {}) {
    this.#running = running;
    this.#stream = stream;
    this.#keepsAlive = keepsAlive;
    running.subscribe(this.#take);
    running.ended.then(
      () => this.#queue.end(),
      (error: Error) => this.#queue.end(error),
    );
    givenUp.catch((error: Error) => this.#stop(error));
    running.begin();
  }

  async next(): Promise<IteratorResult<Output, undefined>> {
    const next = this.#queue.next();
    const item = await (this.#keepsAlive ? this.#running.process.awaited(next) : next);
    if (item === undefined) return { done: true, value: undefined };
    this.#unread -= item.output.data.length;
    item.taken();
    return { done: false, value: item.output };
  }

  async return(): Promise<IteratorResult<Output, undefined>> {
    this.#stop();
    return { done: true, value: undefined };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  #stop(error?: Error): void {
    this.#running.unsubscribe(this.#take);
    this.#queue.drop(({ taken }) => taken(), error);
  }

  readonly #take: Sink = (output, taken) => {
    const isOther = this.#stream !== undefined && output.stream !== this.#stream;
    // Of a command that is not held back any more, no more is kept than of one that is.
    if (isOther || (this.#running.isReleased && this.#unread > WINDOW)) return taken();
    this.#unread += output.data.length;
    this.#queue.push({ output, taken });
  };
}
