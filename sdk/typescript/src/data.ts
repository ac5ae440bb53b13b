/** Data that is written to a file, or to stdin. */

import { types } from "node:util";

import { InvalidArgumentError } from "./errors.js";
import type { Input } from "./protocol/input.js";

/** A string is written as UTF-8; of views, their bytes. */
export type Data =
  | string
  | ArrayBufferLike
  | ArrayBufferView
  | Blob
  | ReadableStream<Uint8Array>
  | AsyncIterable<Uint8Array | ArrayBufferLike | ArrayBufferView>;

/** The bytes of data, as they come. */
export type Pieces = AsyncGenerator<Uint8Array, void, undefined>;

/**
 * The data's bytes, in pieces.
 *
 * @throws InvalidArgumentError at once, if it is something else; and later, if a piece is
 */
export function pieces(data: Data): Pieces {
  const bytes = bytesOf(typeof data === "string" ? Buffer.from(data) : data);
  if (bytes !== undefined) return piecesOf([bytes]);
  if (data instanceof Blob) return piecesOf(data.stream());
  if (typeof data === "object" && data !== null && Symbol.asyncIterator in data) return piecesOf(data);
  throw new InvalidArgumentError(`data is a string, bytes, a Blob or a stream of bytes, not ${described(data)}`, { kind: "invalid" });
}

async function* piecesOf(source: AsyncIterable<unknown> | Iterable<unknown>): Pieces {
  for await (const piece of source) {
    const bytes = bytesOf(piece);
    if (bytes === undefined) throw new InvalidArgumentError(`a piece of data is bytes, not ${described(piece)}`, { kind: "invalid" });
    yield bytes;
  }
}

/** The bytes of a view or a buffer, also of another realm. */
function bytesOf(value: unknown): Uint8Array | undefined {
  if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
  return types.isAnyArrayBuffer(value) ? new Uint8Array(value) : undefined;
}

function described(value: unknown): string {
  return Object.prototype.toString.call(value).slice("[object ".length, -1);
}

/** Writes all pieces to stdin, and ends it; stops when nothing reads it any more. `first` is the first piece, if it was taken. */
export async function feed(source: Pieces, stdin: Input, first = source.next()): Promise<void> {
  try {
    for (let piece = await first; piece.done !== true && !stdin.isClosed; piece = await source.next()) {
      await stdin.write(piece.value);
    }
    await stdin.end();
  } finally {
    await source.return();
  }
}
