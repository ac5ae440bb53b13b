/** What mica knows of a sandbox, as `mica inspect` shows it: the fields that this package uses. */

import type { Text } from "../protocol/text.js";

export interface SandboxRecord {
  id: string;
  name: string;
  image?: { reference: string | null; digest: string } | null;
  /** Seconds since 1970. */
  created: number;
  created_nanos?: number;
  memory_mib: number;
  cpus: number;
  labels?: Record<string, string>;
  /** `ADDRESS:PORT:PORT/tcp`: of this machine, and of the sandbox. */
  published?: string[];
  defaults: {
    env: [Text, Text][];
    workdir: Text;
    user: string;
  };
  status: { state: string; since?: number };
  /** In lists: also `paused`. */
  state?: string;
}

/** The address on this machine that leads to a sandbox's TCP port. */
export function publishedAt(record: SandboxRecord, port: number): string | undefined {
  const found = record.published?.find((one) => one.endsWith(`:${port}/tcp`));
  return found?.slice(0, found.lastIndexOf(":"));
}
