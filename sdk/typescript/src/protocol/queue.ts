/** A queue that is read as a promise at a time, to its end or an error. */
export class Queue<T> {
  readonly #items: T[] = [];
  #end: { error: Error | undefined } | undefined;
  readonly #waiting: (() => void)[] = [];

  push(item: T): void {
    if (this.#end !== undefined) return;
    this.#items.push(item);
    this.#wake();
  }

  /** Lets no more in; after the items that are there, `next` returns undefined, or throws the error. */
  end(error?: Error): void {
    this.#end ??= { error };
    this.#wake();
  }

  /** Ends it without the items that are there, each of which is handed to `each`. */
  drop(each: (item: T) => void, error?: Error): void {
    this.#items.splice(0).forEach(each);
    this.end(error);
  }

  /** The next item; undefined at the end. Callers are served in turn. */
  async next(): Promise<T | undefined> {
    for (;;) {
      if (this.#items.length > 0) return this.#items.shift();
      if (this.#end?.error !== undefined) throw this.#end.error;
      if (this.#end !== undefined) return undefined;
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
  }

  #wake(): void {
    for (const wake of this.#waiting.splice(0)) wake();
  }
}
