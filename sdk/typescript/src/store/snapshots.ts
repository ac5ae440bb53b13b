/** Snapshots: copies of sandboxes' disks, or of whole machines. */

import { mica, micaJson } from "../mica.js";

/** A snapshot. */
export interface SnapshotInfo {
  /** Its name: what `mica run --from` takes. */
  snapshotId: string;
  /** The sandbox that it is a copy of. */
  sandbox: string;
  /** When it was made. */
  createdAt: Date;
  /** Bytes of the disk. */
  size: number;
}

interface Listed {
  name: string;
  sandbox: string;
  created: number;
  size: number;
}

/** Snapshots: copies of sandboxes' disks, or of whole machines. */
export const snapshots = {
  /** All snapshots. */
  async list(): Promise<SnapshotInfo[]> {
    const listed = await micaJson<Listed[]>(["snapshot", "ls", "--json"]);
    return listed.map(({ name, sandbox, created, size }) => ({
      snapshotId: name,
      sandbox,
      createdAt: new Date(created * 1000),
      size,
    }));
  },

  /** Removes a snapshot. */
  async remove(snapshotId: string): Promise<void> {
    await mica(["snapshot", "rm", "--", snapshotId]);
  },
};
