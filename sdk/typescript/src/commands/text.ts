/** An output that is kept as a string. */

import { constants } from "node:buffer";
import { TextDecoder } from "node:util";

import { NotEnoughSpaceError } from "../errors.js";

/** Decodes UTF-8 as it comes; what is none becomes U+FFFD. */
export function decoder(): TextDecoder {
  return new TextDecoder("utf-8", { ignoreBOM: true });
}

export class Text {
  text = "";
  readonly #decoder = decoder();
  readonly #most: number;

  /** A string has at most so many characters. */
  constructor(most: number = constants.MAX_STRING_LENGTH) {
    this.#most = most;
  }

  /** @throws NotEnoughSpaceError if there is more than a string holds */
  add(bytes: Uint8Array): void {
    const more = this.#decoder.decode(bytes, { stream: true });
    if (this.text.length + more.length > this.#most) {
      throw new NotEnoughSpaceError(`the command has written more than a string holds, ${this.#most} characters`, {
        kind: "full",
        hint: "`capture: false` keeps none of it; `onOutput`, `for await` and `readable` have it as it comes",
      });
    }
    this.text += more;
  }

  /** Half a character at the end becomes U+FFFD. */
  end(): void {
    this.text += this.#decoder.decode();
  }
}
