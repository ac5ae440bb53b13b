/** Images of the store. */

import type { Data } from "../data.js";
import { mica, micaJson, type MicaOptions } from "../mica.js";

export interface ImageInfo {
  references: string[];
  /** The manifest's. */
  digest: string;
  platform: string;
  layers: number;
  /** Bytes. */
  size: number;
}

export interface TransferOptions {
  /** Called with each line that mica says meanwhile. */
  onProgress?: (line: string) => void | Promise<void>;
  signal?: AbortSignal;
}

interface Listed {
  references: string[];
  manifest_digest: string;
  platform: string;
  layers: number;
  size: number;
}

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
  async pull(image: string, opts: TransferOptions & { platform?: string } = {}): Promise<void> {
    const flags = opts.platform === undefined ? [] : [`--platform=${opts.platform}`];
    await mica(["pull", ...flags, "--", image], transfer(opts));
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

function transfer({ onProgress, signal: by }: TransferOptions): MicaOptions {
  return { ...(onProgress === undefined ? {} : { onLine: onProgress }), ...(by === undefined ? {} : { signal: by }) };
}

function signal({ signal: by }: { signal?: AbortSignal }): MicaOptions {
  return by === undefined ? {} : { signal: by };
}
