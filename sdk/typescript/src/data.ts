/** Data that is written to a file, or to stdin. */

import type { Input } from "./protocol/input.js";

export type Data = string | ArrayBuffer | Uint8Array | Blob | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>;

/** The data's bytes, in pieces. */
export async function* pieces(data: Data): AsyncGenerator<Uint8Array, void, undefined> {
  if (typeof data === "string") yield Buffer.from(data);
  else if (data instanceof Uint8Array) yield data;
  else if (data instanceof ArrayBuffer) yield new Uint8Array(data);
  else if (data instanceof Blob) yield* data.stream();
  else yield* data;
}

/** Writes all of the data to stdin, and ends it; stops when nothing reads it any more. */
export async function feed(data: Data, stdin: Input): Promise<void> {
  for await (const piece of pieces(data)) {
    if (stdin.isClosed) return;
    await stdin.write(piece);
  }
  await stdin.end();
}
