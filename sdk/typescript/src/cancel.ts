/** What callers give up by an AbortSignal. */

import { CancelledError } from "./errors.js";

/** The error for what was given up. */
export function cancelled(what: string, signal: AbortSignal | undefined): CancelledError {
  return new CancelledError(`${what} was cancelled`, { kind: "cancelled", cause: signal?.reason });
}

/** @throws CancelledError if the signal is aborted */
export function checkSignal(what: string, signal: AbortSignal | undefined): void {
  if (signal?.aborted === true) throw cancelled(what, signal);
}

/**
 * The result of what is under way, which goes on if the caller gives up.
 *
 * @throws CancelledError if the signal is aborted first
 */
export async function unlessAborted<T>(what: string, signal: AbortSignal | undefined, work: Promise<T>): Promise<T> {
  if (signal === undefined) return work;
  let abort: (() => void) | undefined;
  const aborted = new Promise<never>((_, reject) => {
    abort = () => reject(cancelled(what, signal));
    if (signal.aborted) abort();
    else signal.addEventListener("abort", abort);
  });
  try {
    return await Promise.race([aborted, work]);
  } finally {
    if (abort !== undefined) signal.removeEventListener("abort", abort);
  }
}
