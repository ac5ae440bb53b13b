/** The requests that make sandboxes, and what becomes of these when the caller gives up. */

import { cancelled, unlessAborted } from "../cancel.js";
import { askOwner } from "../owner.js";
import { server } from "../server.js";
import { pullProgress, type OnProgress } from "../store/progress.js";
import type { SandboxRecord } from "./record.js";

const WHAT = "making a sandbox";

/** A sandbox that was made. */
export interface Made {
  directory: string;
  record: SandboxRecord;
}

export interface MakeOptions {
  onProgress?: OnProgress | undefined;
  signal?: AbortSignal | undefined;
}

/**
 * Makes sandboxes.
 *
 * @throws CancelledError if the caller's signal says so, or what its `onProgress` throws: then none is left
 */
export async function make(request: object, { onProgress, signal }: MakeOptions = {}): Promise<Made[]> {
  const { connection } = await unlessAborted(WHAT, signal, server());
  const call = connection.call(request);
  const made = call.answer("sandboxes").then((message) => message["sandboxes"] as Made[]);
  made.finally(() => call.over()).catch(() => undefined);
  return new Promise((resolve, reject) => {
    let isGivenUp = false;
    const giveUp = (error: unknown): void => {
      if (isGivenUp) return;
      isGivenUp = true;
      call.send({ type: "cancel" });
      // One that was made all the same is the caller's no more.
      made.then((all) => Promise.all(all.map(kill))).catch(() => undefined);
      reject(error);
    };
    const abort = (): void => giveUp(cancelled(WHAT, signal));
    signal?.addEventListener("abort", abort);
    if (signal?.aborted) abort();
    // One after the other, and before the sandboxes.
    let told: Promise<unknown> = Promise.resolve();
    call.onProgress((message) => {
      const progress = pullProgress(message);
      if (progress === undefined) return;
      told = told.then(() => onProgress?.(progress));
      told.catch(giveUp);
    });
    const finish = async (): Promise<Made[]> => {
      try {
        const all = await made;
        await told;
        return all;
      } finally {
        signal?.removeEventListener("abort", abort);
      }
    };
    // After `giveUp`, this has no effect.
    finish().then(resolve, reject);
  });
}

async function kill({ directory, record: { name } }: Made): Promise<void> {
  await askOwner({ directory, name }, { type: "kill" }, "stopped");
}
