/** Replies of an operation on files: a length and JSON. */

import { ProtocolError } from "../errors.js";
import type { Text } from "../protocol/text.js";

/** Most bytes of a reply: a path and a link's target, with each byte escaped. */
const MAX_REPLY = 64 << 10;
const LENGTH = 4;

export interface Time {
  seconds: number;
  nanos: number;
}

export interface Stat {
  kind: string;
  mode: number;
  uid: number;
  gid: number;
  size: number;
  modified: Time;
}

export type Reply =
  | ({ type: "stat" } & Stat)
  | { type: "entry"; path: Text; stat: Stat; target: Text }
  | { type: "target"; target: Text }
  | { type: "event"; path: Text; is_directory: boolean; cookie: number; change: string }
  | { type: "failed"; path?: Text; errno: number; message: string }
  | { type: "left_out"; path: Text; what: string };

/** Decodes what arrives in pieces of any size. */
export class ReplyDecoder {
  #pending: Buffer = Buffer.alloc(0);

  push(bytes: Uint8Array): Reply[] {
    this.#pending = Buffer.concat([this.#pending, bytes]);
    const replies: Reply[] = [];
    let at = 0;
    while (this.#pending.length - at >= LENGTH) {
      const length = this.#pending.readUInt32LE(at);
      if (length > MAX_REPLY) throw new ProtocolError(`a reply of ${length} bytes`);
      const end = at + LENGTH + length;
      if (end > this.#pending.length) break;
      replies.push(JSON.parse(this.#pending.toString("utf8", at + LENGTH, end)) as Reply);
      at = end;
    }
    this.#pending = this.#pending.subarray(at);
    return replies;
  }
}
