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

/** Encodes what an operation reads: a length and JSON. */
export function encodeReply(value: object): Buffer {
  const json = Buffer.from(JSON.stringify(value));
  const length = Buffer.alloc(LENGTH);
  length.writeUInt32LE(json.length);
  return Buffer.concat([length, json]);
}

/** A guest may lie: the fields that are used are what they must be. */
function parse(json: string): Reply {
  const reply = parsed(json);
  const stat = reply["type"] === "entry" ? (reply["stat"] as Record<string, unknown> | undefined) : reply;
  const hasStat = reply["type"] !== "stat" && reply["type"] !== "entry" ? true : isStat(stat);
  const texts = ["path", "target"].filter((name) => name in reply);
  if (!hasStat || !texts.every((name) => isText(reply[name]))) throw new ProtocolError("a malformed reply of an operation on files");
  return reply as Reply;
}

function parsed(json: string): Record<string, unknown> {
  try {
    const reply: unknown = JSON.parse(json);
    if (typeof reply === "object" && reply !== null) return reply as Record<string, unknown>;
  } catch {
    // Told below.
  }
  throw new ProtocolError("a reply of an operation on files is not JSON");
}

function isStat(stat: Record<string, unknown> | undefined): boolean {
  const { modified } = stat ?? {};
  const numbers = ["mode", "uid", "gid", "size"].map((name) => stat?.[name]);
  const times = typeof modified === "object" && modified !== null ? ["seconds", "nanos"].map((name) => (modified as Record<string, unknown>)[name]) : [NaN];
  return typeof stat?.["kind"] === "string" && [...numbers, ...times].every(Number.isFinite);
}

function isText(text: unknown): boolean {
  return typeof text === "string" || (typeof text === "object" && text !== null && typeof (text as { base64?: unknown }).base64 === "string");
}

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
      replies.push(parse(this.#pending.toString("utf8", at + LENGTH, end)));
      at = end;
    }
    this.#pending = this.#pending.subarray(at);
    return replies;
  }
}
