/** What a sandbox is made of. */

import { checkEnvs } from "../commands/exec.js";
import { InvalidArgumentError } from "../errors.js";
import { timeLimit } from "../protocol/number.js";
import type { OnProgress } from "../store/progress.js";

/** `true` for a flag, a list for an option that may be repeated, an object for names and values. */
export type OptionValue = boolean | string | number | readonly string[] | Readonly<Record<string, string>> | undefined;

/** E2B's names where it has one; and every long option of `mica run`, in camel case: `mica run --help`. */
export interface SandboxOptions {
  /** Variables of all its commands. */
  envs?: Record<string, string>;
  /** Labels, for `Sandbox.list`. */
  metadata?: Record<string, string>;
  /** Milliseconds until it is ended; no limit unless given, or with Infinity. */
  timeoutMs?: number;
  /** Milliseconds without commands and clients after which it is ended, once it is detached. */
  idleTimeoutMs?: number;
  /** Whether it has a network: true unless given. */
  allowInternetAccess?: boolean;
  /** Volumes by path. */
  volumeMounts?: Record<string, string>;
  /** Forget it when it ends: true unless given. One that keeps its disk needs `false`. */
  rm?: boolean;
  name?: string;
  /** `1g`, `512m`. */
  memory?: string;
  cpus?: number;
  user?: string;
  workdir?: string;
  /** `tmpfs`, `disk`, `disk:8g` or `folder:DIRECTORY`. */
  upper?: string;
  /** Ports of this machine that lead in: `8080:80`. */
  publish?: readonly string[];
  /** A file with an ext4 or EROFS filesystem, in place of an image. */
  rootDisk?: string;
  /** The name of a snapshot, in place of an image. */
  snapshot?: string;
  /** `auto`, `kvm`, `qemu` or `host`. */
  backend?: string;
  /** Called with how far the pull of an image is that is not here. */
  onProgress?: OnProgress;
  /** Gives up, at any time: nothing is left then. */
  signal?: AbortSignal;
  [option: string]: OptionValue | OnProgress | AbortSignal;
}

/** The options of a request `create`. */
export function requestOptions(opts: SandboxOptions): Record<string, OptionValue> {
  const { envs, metadata, timeoutMs, idleTimeoutMs, allowInternetAccess, volumeMounts, snapshot, rm = true, ...more } = opts;
  const { onProgress: _told, signal: _signal, ...others } = more;
  const options: Record<string, OptionValue> = { rm };
  for (const [name, value] of Object.entries(others)) {
    if (value === undefined) continue;
    if (typeof value === "function" || value instanceof AbortSignal) {
      throw new InvalidArgumentError(`an option \`${name}\` has another type`, { kind: "invalid" });
    }
    options[name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)] = value;
  }
  if (snapshot !== undefined) options["from"] = snapshot;
  if (envs !== undefined) checkEnvs((options["env"] = envs));
  if (metadata !== undefined) {
    for (const name of Object.keys(metadata)) {
      if (name !== "" && !name.includes("=")) continue;
      throw new InvalidArgumentError(`\`${name}\` is no name of metadata`, { kind: "invalid" });
    }
    options["label"] = metadata;
  }
  if (timeoutMs !== undefined) options["max-life"] = seconds("timeoutMs", timeoutMs);
  if (idleTimeoutMs !== undefined) options["idle-timeout"] = seconds("idleTimeoutMs", idleTimeoutMs);
  if (allowInternetAccess === false) options["net"] = "none";
  if (volumeMounts !== undefined) {
    const mounts = Object.entries(volumeMounts).map(([path, volume]) => `${volume}:${path}`);
    options["volume"] = [...mounts, ...list(options["volume"])];
  }
  return options;
}

/** mica takes whole seconds: what is begun counts. */
function seconds(name: string, milliseconds: number): string {
  return `${Math.ceil(timeLimit(name, milliseconds) / 1000)}s`;
}

function list(value: OptionValue): readonly string[] {
  if (typeof value === "string") return [value];
  return Array.isArray(value) ? (value as readonly string[]) : [];
}
