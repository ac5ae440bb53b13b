/** What a sandbox is, uses and has changed. */

import type { SandboxRecord } from "./record.js";

/** What a sandbox is. */
export interface SandboxInfo {
  /** Its ID. */
  sandboxId: string;
  /** Its name. */
  name: string;
  /** The image's name, or its digest if it has none; the path of a root disk. */
  image: string | undefined;
  /** Its labels. */
  metadata: Record<string, string>;
  /** When it was made. */
  startedAt: Date;
  /** `running`, `paused`, `exited` and so on. */
  state: string;
  /** Processors of the machine. */
  cpuCount: number;
  /** Memory of the machine, in MiB. */
  memoryMB: number;
}

export function sandboxInfo(record: SandboxRecord): SandboxInfo {
  return {
    sandboxId: record.id,
    name: record.name,
    image: record.image?.reference ?? record.image?.digest,
    metadata: record.labels ?? {},
    startedAt: new Date(madeAt(record)),
    state: record.state ?? record.status.state,
    cpuCount: record.cpus,
    memoryMB: record.memory_mib,
  };
}

/** Milliseconds since 1970 at which the sandbox was made. */
function madeAt({ created, created_nanos = 0 }: SandboxRecord): number {
  return created * 1000 + created_nanos / 1e6;
}

/** What a sandbox uses of its host, since its start; undefined where the host does not say. */
export interface SandboxStats {
  /** Seconds. */
  processorTime: number;
  /** Bytes of the machine and its monitor alone. */
  ownMemory: number | undefined;
  /** Bytes of files that sandboxes share, such as the image's. */
  sharedMemory: number | undefined;
  /** Bytes that were read from its disks. */
  diskRead: number | undefined;
  /** Bytes that were written to its disks. */
  diskWritten: number | undefined;
  /** Bytes of ethernet frames that it received. */
  networkReceived: number | undefined;
  /** Bytes of ethernet frames that it sent. */
  networkSent: number | undefined;
}

export function sandboxStats(said: Record<string, unknown>): SandboxStats {
  const number = (name: string): number | undefined => (typeof said[name] === "number" ? said[name] : undefined);
  return {
    processorTime: (number("processor_time") ?? 0) / 1e6,
    ownMemory: number("own_memory"),
    sharedMemory: number("shared_memory"),
    diskRead: number("disk_read"),
    diskWritten: number("disk_written"),
    networkReceived: number("network_received"),
    networkSent: number("network_sent"),
  };
}

/** A path that a sandbox has changed. */
export interface Change {
  /** With U+FFFD for bytes that are not UTF-8. */
  path: string;
  /** How it differs from the image. */
  kind: "added" | "changed" | "deleted";
}

export interface ListedChange {
  path?: string;
  path_hex?: string;
  kind: string;
}

export function change({ path, path_hex, kind }: ListedChange): Change {
  const kinds: Record<string, Change["kind"]> = { A: "added", C: "changed", D: "deleted" };
  return { path: path ?? Buffer.from(path_hex ?? "", "hex").toString("utf8"), kind: kinds[kind] ?? "changed" };
}
