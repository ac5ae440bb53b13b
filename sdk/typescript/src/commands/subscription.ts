/** The outputs of a command from now on, one at a time; the command waits until each was taken. */

import type { Output } from "../protocol/call.js";
import { Queue } from "../protocol/queue.js";
import type { Running } from "./running.js";

export class Subscription implements AsyncIterableIterator<Output> {
  readonly #running: Running;
  readonly #queue = new Queue<{ output: Output; taken: () => void }>();
  /** Lets the command go on after what was handed out. */
  #taken: (() => void) | undefined;
  #isOver = false;

  constructor(running: Running) {
    this.#running = running;
    running.subscribe(this.#take);
    running.ended.then(
      () => this.#queue.end(),
      (error: Error) => this.#queue.end(error),
    );
    running.begin();
  }

  async next(): Promise<IteratorResult<Output, undefined>> {
    this.#taken?.();
    this.#taken = undefined;
    const item = this.#isOver ? undefined : await this.#queue.next();
    if (item === undefined) return { done: true, value: undefined };
    if (this.#isOver) item.taken();
    else this.#taken = item.taken;
    return { done: false, value: item.output };
  }

  async return(): Promise<IteratorResult<Output, undefined>> {
    this.#isOver = true;
    this.#running.unsubscribe(this.#take);
    this.#taken?.();
    // One that was not taken yet holds the command back as well.
    this.#queue.drop(({ taken }) => taken());
    return { done: true, value: undefined };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  readonly #take = (output: Output): Promise<void> => new Promise((taken) => this.#queue.push({ output, taken }));
}
