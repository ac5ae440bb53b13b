/** Volumes: disks with names, which outlive the sandboxes that use them. */

import { mica, micaJson } from "../mica.js";

/** A volume. */
export interface VolumeInfo {
  /** Its name. */
  name: string;
  /** Bytes of its filesystem. */
  size: number;
  /** Bytes that it takes on the host. */
  allocated: number;
  /** IDs of the sandboxes that use it. */
  sandboxes: string[];
}

/** Volumes: disks with names, which outlive the sandboxes that use them. */
export const volumes = {
  /** All volumes. */
  async list(): Promise<VolumeInfo[]> {
    const listed = await micaJson<VolumeInfo[]>(["volume", "ls", "--json"]);
    return listed.map(({ name, size, allocated, sandboxes }) => ({ name, size, allocated, sandboxes }));
  },

  /** Makes a volume of this size, such as `20g`. */
  async create(name: string, opts: { size?: string } = {}): Promise<void> {
    await mica(["volume", "create", ...(opts.size === undefined ? [] : [`--size=${opts.size}`]), "--", name]);
  },

  /** Grows a volume that no running sandbox uses. */
  async resize(name: string, size: string): Promise<void> {
    await mica(["volume", "resize", "--", name, size]);
  },

  /** Removes a volume that no sandbox uses. */
  async remove(name: string): Promise<void> {
    await mica(["volume", "rm", "--", name]);
  },
};
