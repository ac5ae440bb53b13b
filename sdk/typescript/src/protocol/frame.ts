/** Frames: a length of what follows, a kind, a number, and a body. */

import { ProtocolError } from "../errors.js";

/** What each side sends first: the protocol's name and version. */
export const PREAMBLE = Buffer.from("MICAOWN\n\x02\0\0\0", "latin1");

/** Most bytes of a stream in a frame. */
export const MAX_DATA = 32 << 10;

/** Most bytes of a message. */
export const MAX_MESSAGE = 8 << 20;

const LENGTH = 4;
const HEAD = 5;

/** The kinds of frames. */
export const Kind = { message: 0, stdin: 1, stdout: 2, stderr: 3 } as const;

export interface Frame {
  kind: number;
  number: number;
  body: Uint8Array;
}

/** Encodes a frame. */
export function encode(kind: number, number: number, body: Uint8Array): Buffer {
  const frame = Buffer.allocUnsafe(LENGTH + HEAD + body.length);
  frame.writeUInt32LE(HEAD + body.length, 0);
  frame.writeUInt8(kind, LENGTH);
  frame.writeUInt32LE(number, LENGTH + 1);
  frame.set(body, LENGTH + HEAD);
  return frame;
}

/** Decodes what arrives in pieces of any size. */
export class Decoder {
  #pending: Buffer = Buffer.alloc(0);
  #isGreeted = false;

  /**
   * Returns the frames that are complete with these bytes.
   *
   * @throws ProtocolError nothing can be decoded after it
   */
  push(bytes: Uint8Array): Frame[] {
    const { buffer, byteOffset, length } = bytes;
    this.#pending = this.#pending.length === 0 ? Buffer.from(buffer, byteOffset, length) : Buffer.concat([this.#pending, bytes]);
    if (!this.#isGreeted && !this.#greet()) return [];
    const frames: Frame[] = [];
    let at = 0;
    while (this.#pending.length - at >= LENGTH + HEAD) {
      const length = this.#pending.readUInt32LE(at);
      const kind = this.#pending.readUInt8(at + LENGTH);
      const most = HEAD + (kind === Kind.message ? MAX_MESSAGE : MAX_DATA);
      if (length < HEAD || length > most || kind > Kind.stderr || kind === Kind.stdin) {
        throw new ProtocolError(`a frame of kind ${kind} and length ${length}`);
      }
      const end = at + LENGTH + length;
      if (end > this.#pending.length) break;
      const number = this.#pending.readUInt32LE(at + LENGTH + 1);
      frames.push({ kind, number, body: this.#pending.subarray(at + LENGTH + HEAD, end) });
      at = end;
    }
    this.#pending = this.#pending.subarray(at);
    return frames;
  }

  #greet(): boolean {
    const theirs = this.#pending.subarray(0, PREAMBLE.length);
    if (!theirs.equals(PREAMBLE.subarray(0, theirs.length))) {
      throw new ProtocolError("the other side does not speak version 2 of the protocol: use SDK and mica of one version");
    }
    if (theirs.length < PREAMBLE.length) return false;
    this.#pending = this.#pending.subarray(PREAMBLE.length);
    this.#isGreeted = true;
    return true;
  }
}
