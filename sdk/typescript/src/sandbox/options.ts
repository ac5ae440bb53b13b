/** What a sandbox is made of. */

import { checkEnvs } from "../commands/exec.js";
import { InvalidArgumentError } from "../errors.js";
import { timeLimit } from "../protocol/number.js";
import type { OnProgress } from "../store/progress.js";

/** `true` for a flag, a list for an option that may be repeated, an object for names and values. */
export type OptionValue = boolean | string | number | readonly string[] | Readonly<Record<string, string>> | undefined;

/**
 * What a sandbox is made with: E2B's names where it has one, and every long option of `mica run` in camel case. Those
 * that are not listed here are in `mica run --help`. Sizes are in bytes, or have a unit: `k`, `m`, `g` or `t`.
 */
export interface SandboxOptions {
  /** Variables of all its commands. Default: the image's. */
  envs?: Record<string, string>;
  /** Labels, for `Sandbox.list`. Default: none. */
  metadata?: Record<string, string>;
  /** Milliseconds until it is ended. Default: no limit, as with `Infinity`. */
  timeoutMs?: number;
  /** Milliseconds without commands and clients after which it is ended, once it is detached. Default: no limit. */
  idleTimeoutMs?: number;
  /** Whether it has a network. Default: `true`. */
  allowInternetAccess?: boolean;
  /** Volumes by path. Default: none. */
  volumeMounts?: Record<string, string>;
  /** Whether it is forgotten when it ends; one that keeps its disk needs `false`. Default: `true`. */
  rm?: boolean;
  /** Its name. Default: two random words. */
  name?: string;
  /** Memory of the machine: `512m`, `2g`. Default: `1g`. */
  memory?: string;
  /** Processors; a fraction limits its processor time. Default: up to 4 with KVM, 1 when emulated. */
  cpus?: number;
  /** User of commands, by name or ID, with `:GROUP` if wanted. Default: the image's, or root. */
  user?: string;
  /** Working directory of commands, absolute, made if missing. Default: the image's, or `/`. */
  workdir?: string;
  /** Where changes go: `tmpfs`, `disk`, `disk:8g` or `folder:DIRECTORY`. Default: `tmpfs`, gone with the sandbox. */
  upper?: string;
  /** Ports of this machine that lead in: `8080:80`. Default: none. */
  publish?: readonly string[];
  /** A file with an ext4 or EROFS filesystem, in place of an image. Default: none. */
  rootDisk?: string;
  /** The name of a snapshot, in place of an image. Default: none. */
  snapshot?: string;
  /** What runs it: `auto`, `kvm`, `qemu` or `host`. Default: `auto`, which is never `host`. */
  backend?: string;
  /** Called with how far the pull of an image is that is not here. Default: nothing is told. */
  onProgress?: OnProgress;
  /** Gives up, at any time: nothing is left then. Default: nothing does. */
  signal?: AbortSignal;
  /** Any other long option of `mica run`, in camel case: `netAllow: ["*.example.com"]`. */
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

function seconds(name: string, milliseconds: number): string {
  return `${timeLimit(name, milliseconds) / 1000}s`;
}

function list(value: OptionValue): readonly string[] {
  if (typeof value === "string") return [value];
  return Array.isArray(value) ? (value as readonly string[]) : [];
}
