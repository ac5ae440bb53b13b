/** Images of the store. */

import type { Data } from "../data.js";
import { mica, micaJson, type MicaOptions } from "../mica.js";
import { pullProgress, type OnProgress } from "./progress.js";

/** An image of the store. */
export interface ImageInfo {
  /** Its names. */
  references: string[];
  /** The manifest's. */
  digest: string;
  /** Its platform: `linux/amd64`. */
  platform: string;
  /** How many layers it has. */
  layers: number;
  /** Bytes. */
  size: number;
}

/** How an image is sent or fetched. */
export interface TransferOptions {
  /** Called with each line that is worth a notice, such as retries. */
  onNotice?: (line: string) => void | Promise<void>;
  /** Gives up. Default: nothing does. */
  signal?: AbortSignal;
}

/** How an image is fetched. */
export interface PullOptions extends TransferOptions {
  /** Which of an index's images: `linux/amd64`. Default: this machine's. */
  platform?: string;
  /** Called with how far the pull is. Default: nothing is told. */
  onProgress?: OnProgress;
}

interface Listed {
  references: string[];
  manifest_digest: string;
  platform: string;
  layers: number;
  size: number;
}

/** Images of the store. */
export const images = {
  /** All images of the store. */
  async list(): Promise<ImageInfo[]> {
    const listed = await micaJson<Listed[]>(["images", "--json"]);
    return listed.map(({ references, manifest_digest: digest, platform, layers, size }) => ({
      references,
      digest,
      platform,
      layers,
      size,
    }));
  },

  /** Fetches an image from its registry; what is in the store is not fetched again. */
  async pull(image: string, opts: PullOptions = {}): Promise<void> {
    const { onNotice, onProgress } = opts;
    const flags = opts.platform === undefined ? [] : [`--platform=${opts.platform}`];
    if (onProgress === undefined) {
      await mica(["pull", ...flags, "--", image], transfer(opts));
      return;
    }
    const onLine = async (line: string): Promise<void> => {
      const message = parse(line);
      const progress = message && pullProgress(message);
      if (progress !== undefined) await onProgress(progress);
      // What is no message is for people, of a pull that fails.
      else await onNotice?.(typeof message?.["message"] === "string" ? message["message"] : line);
    };
    await mica(["pull", "--progress=json", ...flags, "--", image], { ...transfer(opts), onLine });
  },

  /** Sends an image to a registry, under its own name or another one. */
  async push(image: string, destination?: string, opts: TransferOptions = {}): Promise<void> {
    await mica(["push", "--", image, ...(destination === undefined ? [] : [destination])], transfer(opts));
  },

  /** Gives an image another name. */
  async tag(image: string, name: string): Promise<void> {
    await mica(["tag", "--", image, name]);
  },

  /** Removes a name, and the image with its last one. */
  async remove(image: string): Promise<void> {
    await mica(["rmi", "--", image]);
  },

  /** Loads images from an archive of Docker's or OCI's. */
  async load(archive: Data, opts: { name?: string; signal?: AbortSignal } = {}): Promise<void> {
    const flags = opts.name === undefined ? [] : [`--name=${opts.name}`];
    await mica(["load", ...flags, "-"], { stdin: archive, ...signal(opts) });
  },

  /** Writes an image as an archive, a piece at a time. */
  async save(image: string, write: (bytes: Uint8Array) => void | Promise<void>, opts: { signal?: AbortSignal } = {}): Promise<void> {
    await mica(["save", "--", image], { onStdout: write, ...signal(opts) });
  },
};

function transfer({ onNotice, signal: by }: TransferOptions): MicaOptions {
  return { ...(onNotice === undefined ? {} : { onLine: onNotice }), ...(by === undefined ? {} : { signal: by }) };
}

function parse(line: string): Record<string, unknown> | undefined {
  try {
    const said: unknown = JSON.parse(line);
    return typeof said === "object" && said !== null ? (said as Record<string, unknown>) : undefined;
  } catch {
    return undefined;
  }
}

function signal({ signal: by }: { signal?: AbortSignal }): MicaOptions {
  return by === undefined ? {} : { signal: by };
}
