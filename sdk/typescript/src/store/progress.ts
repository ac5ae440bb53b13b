/** How far the pull of an image is. */

/** How far a layer is. */
export interface LayerProgress {
  /** Of its blob, as the manifest has it. */
  digest: string;
  /** `present` if it was here; `retrying` with a `reason`. */
  phase: "waiting" | "pulling" | "retrying" | "present" | "done";
  /** Bytes that have arrived; fewer than before if it starts over. */
  done: number;
  /** Bytes of its blob. */
  total: number;
  /** Why it is fetched again. */
  reason?: string;
}

/** How far a pull is: all of it, so that only the last one counts. */
export interface PullProgress {
  /** `resolving` while the registry is asked; `merging` once all layers are here. */
  phase: "resolving" | "pulling" | "merging" | "done";
  /** Bytes of layers that are here. */
  done: number;
  /** Bytes of all layers, as they are in the registry; 0 until they are known, and for an image that is here. */
  total: number;
  /** Each layer, from the lowest on. */
  layers: LayerProgress[];
}

/** Called with how far a pull is, ten times a second at most while bytes arrive. A promise holds the next one back. */
export type OnProgress = (progress: PullProgress) => void | Promise<void>;

/** What a message says of a pull; undefined if it is another one. */
export function pullProgress(message: Record<string, unknown>): PullProgress | undefined {
  if (message["type"] !== "progress") return undefined;
  const { phase, done, total, layers } = message as unknown as PullProgress;
  return { phase, done, total, layers };
}
