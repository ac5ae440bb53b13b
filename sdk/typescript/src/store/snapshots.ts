/** Snapshots: copies of sandboxes' disks, or of whole machines. */

import { mica, micaJson } from "../mica.js";

export interface SnapshotInfo {
  /** Its name: what `mica run --from` takes. */
  snapshotId: string;
  /** The sandbox that it is a copy of. */
  sandbox: string;
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

export const snapshots = {
  async list(): Promise<SnapshotInfo[]> {
    const listed = await micaJson<Listed[]>(["snapshot", "ls", "--json"]);
    return listed.map(({ name, sandbox, created, size }) => ({
      snapshotId: name,
      sandbox,
      createdAt: new Date(created * 1000),
      size,
    }));
  },

  async remove(snapshotId: string): Promise<void> {
    await mica(["snapshot", "rm", "--", snapshotId]);
  },
};
