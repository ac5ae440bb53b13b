/** A command's stdin: bytes go out as they are granted. */

import { MAX_DATA } from "./frame.js";

/** Sends one frame of stdin; resolves when more may be sent. */
export type SendStdin = (bytes: Uint8Array) => Promise<void>;

export class Input {
  readonly #send: SendStdin;
  #granted = 0;
  #isClosed = false;
  #wake: (() => void) | undefined;
  /** Writes are made one after the other. */
  #last: Promise<unknown> = Promise.resolve();

  constructor(send: SendStdin) {
    this.#send = send;
  }

  grant(bytes: number): void {
    this.#granted += bytes;
    this.#wake?.();
  }

  /** Nothing reads stdin any more: what is written is dropped. */
  close(): void {
    this.#isClosed = true;
    this.#wake?.();
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** Resolves when all bytes were sent, or dropped. */
  write(bytes: Uint8Array): Promise<void> {
    return this.#inTurn(async () => {
      for (let at = 0; at < bytes.length && !this.#isClosed; ) {
        if (this.#granted === 0) {
          await new Promise<void>((resolve) => {
            this.#wake = resolve;
          });
          continue;
        }
        const piece = bytes.subarray(at, at + Math.min(this.#granted, MAX_DATA));
        this.#granted -= piece.length;
        at += piece.length;
        await this.#send(piece);
      }
    });
  }

  /** Ends stdin, after what was written. */
  end(): Promise<void> {
    return this.#inTurn(async () => {
      if (this.#isClosed) return;
      this.#isClosed = true;
      await this.#send(new Uint8Array());
    });
  }

  #inTurn(work: () => Promise<void>): Promise<void> {
    const turn = this.#last.then(work);
    this.#last = turn.catch(() => undefined);
    return turn;
  }
}
