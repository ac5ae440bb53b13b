/** Numbers that callers give, as the protocol takes them. */

import { InvalidArgumentError } from "../errors.js";

/** Most of an unsigned number of 16 bits. */
export const MAX_U16 = 0xffff;
/** Most of an unsigned number of 32 bits. */
export const MAX_U32 = 0xffff_ffff;

/**
 * A whole number between these, both included.
 *
 * @throws InvalidArgumentError if it is something else
 */
export function whole(what: string, value: number, least = 0, most = Number.MAX_SAFE_INTEGER): number {
  if (Number.isSafeInteger(value) && value >= least && value <= most) return value;
  throw new InvalidArgumentError(`${what} is a whole number from ${least} to ${most}, not ${String(value)}`, { kind: "invalid" });
}

/**
 * A time limit in whole milliseconds, of which what is begun counts; 0 for none, which Infinity stands for too.
 *
 * @throws InvalidArgumentError if it is something else
 */
export function timeLimit(what: string, value: number): number {
  return value === Infinity ? 0 : whole(what, typeof value === "number" ? Math.ceil(value) : value);
}
