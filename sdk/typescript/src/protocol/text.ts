/** Strings of the protocol, which stand for any bytes: `{"base64": ...}` where they are not UTF-8. */

import { InvalidArgumentError } from "../errors.js";

export type Text = string | { base64: string };

/** Encodes a string, or bytes. */
export function encodeText(text: string | Uint8Array): Text {
  if (typeof text !== "string") return { base64: Buffer.from(text).toString("base64") };
  if (/\p{Surrogate}/u.test(text)) throw halfPair();
  return text;
}

/** The error for a string that can't be encoded. */
export function halfPair(): InvalidArgumentError {
  return new InvalidArgumentError("a string has half a surrogate pair, which has no UTF-8", { kind: "invalid" });
}

/** Decodes to bytes. */
export function textBytes(text: Text): Buffer {
  return typeof text === "string" ? Buffer.from(text) : Buffer.from(text.base64, "base64");
}

/** Decodes to a string, in which U+FFFD stands for bytes that are not UTF-8. */
export function textString(text: Text): string {
  return typeof text === "string" ? text : textBytes(text).toString("utf8");
}
