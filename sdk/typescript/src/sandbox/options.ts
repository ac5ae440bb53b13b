/** What a sandbox is made of. */

import { checkEnvs } from "../commands/exec.js";
import { InvalidArgumentError } from "../errors.js";
import { timeLimit } from "../protocol/number.js";
import type { OnProgress } from "../store/progress.js";

/** `true` for a flag, a list for an option that may be repeated, an object for names and values. */
export type OptionValue = boolean | string | number | readonly string[] | Readonly<Record<string, string>> | undefined;

/**
 * What a sandbox is made with: E2B's names where it has one, and the options of `mica run`, whose help has more on each.
 * Sizes are in bytes, or have a unit: `k`, `m`, `g` or `t`. Times are in seconds, or have one: `s`, `m`, `h` or `d`.
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
  // generated from crates/spec/src/options
  /** Name of the sandbox. Default: two random words. */
  name?: string;
  /** Memory of the machine, in bytes or with `k`, `m`, `g` or `t`: `512m`, `2g`. Default: `1g`. */
  memory?: string;
  /** Processors of the machine; a fraction limits its processor time. Default: up to 4 with KVM, 1 when emulated. */
  cpus?: number | string;
  /** Variables of all commands, by name. Default: the image's. */
  env?: Readonly<Record<string, string>>;
  /** Files on this machine with variables, one a line. Default: none. */
  envFile?: readonly string[];
  /** Labels, by name, for `Sandbox.list` and `mica ps --filter`. Default: none. */
  label?: Readonly<Record<string, string>>;
  /** Files on this machine with labels, one a line. Default: none. */
  labelFile?: readonly string[];
  /** Working directory of commands, absolute, made if missing. Default: the image's, or `/`. */
  workdir?: string;
  /** User of commands, by name or ID, with `:GROUP` if wanted. Default: the image's, or root. */
  user?: string;
  /** Further groups of commands, by name or ID. Default: those of the user in the image. */
  groupAdd?: readonly string[];
  /** Host name inside. Default: the sandbox's ID. */
  hostname?: string;
  /** Whether the sandbox is forgotten when it ends; `false` keeps its record and disk. Default: `true`. */
  rm?: boolean;
  /** Where changes go: `tmpfs`, `disk`, `disk:20g` or `folder:DIR`. Default: `tmpfs`, gone with the sandbox. */
  upper?: string;
  /** File in place of an image: ext4, EROFS, disk (raw, qcow2, VMDK; `,partition=N`); `:rw` changes it. Default: none. */
  rootDisk?: string;
  /** A snapshot in place of an image: its name, or `NAME:TAG` of one in a registry. Default: none. */
  snapshot?: string;
  /** Folders, files, volumes: `HOST:PATH`, `NAME:PATH`, `PATH` (removed with it); then `:ro`, `:cached`. Default: none. */
  volume?: readonly string[];
  /** Mounts as `docker run --mount` has them: `type=image,source=tools,target=/opt`. Default: none. */
  mount?: readonly string[];
  /** Filesystems in memory: `PATH` or `PATH:size=64m,mode=1777`. Default: none. */
  tmpfs?: readonly string[];
  /** Whether the root is read-only. Default: `false`. */
  readOnly?: boolean;
  /** Paths that are removed from the root before the start. Default: none. */
  remove?: readonly string[];
  /** Directories that are made in the root before the start. Default: none. */
  mkdir?: readonly string[];
  /** Files of this machine that are copied into the root before the start: `FILE:PATH`. Default: none. */
  patch?: readonly string[];
  /** Uncompressed archives that are unpacked at the root before the start. Default: none. */
  patchTar?: readonly string[];
  /** Symbolic links that are made in the root before the start: `TARGET:PATH`. Default: none. */
  symlink?: readonly string[];
  /** What the root leaves out: paths, with `*`, not `!PATH`; or `docs`, `man`, `locales`, `caches`. Default: nothing. */
  trim?: readonly string[];
  /** The network: `user` reaches what this machine reaches, but not it and link-local addresses. Default: `user`. */
  net?: "user" | "none" | (string & {});
  /** The only addresses and names that can be reached: `10.0.0.0/8`, `*.example.com:443`. Default: all. */
  netAllow?: readonly string[];
  /** Addresses and names that can't be reached, even if they are allowed. Default: none. */
  netDeny?: readonly string[];
  /** Limit of the network's traffic, in bytes a second: `10m`, `in=10m,out=1m`. Default: no limit. */
  netRate?: string;
  /** Addresses of resolvers: `IP` or `IP:PORT`. Default: this machine's. */
  dns?: readonly string[];
  /** Ports of this machine that lead in: `HOST:GUEST`, `IP:HOST:GUEST`, `GUEST/udp`, ranges. Default: none. */
  publish?: readonly string[];
  /** Whether all ports are published that the image or `expose` names. Default: `false`. */
  publishAll?: boolean;
  /** Ports for `publishAll`: `80`, `53/udp`. Default: none. */
  expose?: readonly string[];
  /** Path of a Unix socket for the sandbox's AF_VSOCK, as Firecracker has it; needs KVM. Default: none. */
  vsock?: string;
  /** Time after which a sandbox without commands and clients is stopped: `90s`, `10m`, `2h`. Default: no limit. */
  idleTimeout?: string;
  /** Time after which it is stopped, whatever runs: `90s`, `10m`, `2h`. Default: no limit. */
  maxLife?: string;
  /** Limits of each process: `NAME=SOFT:HARD`, as in `nofile=1024:4096`; -1 is no limit. Default: `nofile=1024:524288`. */
  ulimit?: readonly string[];
  /** Capabilities beside the usual ones, or that `capDrop` with `ALL` leaves. Default: none. */
  capAdd?: readonly string[];
  /** Capabilities that root and all programs lose. Default: none in a machine; Docker's with the backend `host`. */
  capDrop?: readonly string[];
  /** `no-new-privileges`, so that no program gets more rights than its caller has. Default: none. */
  securityOpt?: readonly string[];
  /** The most processes and threads of all commands together; 0 or -1 is no limit. Default: no limit. */
  pidsLimit?: number;
  /** Size of `/dev/shm`, in bytes or with `k`, `m` or `g`. Default: `64m`. */
  shmSize?: string;
  /** Limit of each disk, in bytes and requests a second: `50m`, `read=50m,write=20m,iops=1000`. Default: no limit. */
  diskRate?: string;
  /** Whether it must not start without a control group that limits its process. Default: `false`. */
  requireLimits?: boolean;
  /** Whether programs inside may use KVM and performance counters. Default: `false`. */
  nestedVirtualization?: boolean;
  /** What runs it: our monitor, QEMU, or a container on this machine's kernel. Default: `auto`, never `host`. */
  backend?: "auto" | "kvm" | "qemu" | "host" | (string & {});
  /** How the image's bytes reach the machine: mapped memory or a disk. Default: `auto`, what boots faster. */
  transport?: "auto" | "pmem" | "blk" | (string & {});
  /** Whether the layers are one filesystem or one each. Default: `merged`. */
  root?: "merged" | "stacked" | (string & {});
  /** Whether the guest checks each block of the image that it reads; over a disk alone. Default: `false`. */
  verity?: boolean;
  /** When the registry is asked. Default: `missing`, or what the settings say. */
  pull?: "always" | "missing" | "never" | (string & {});
  /** Whether it starts before all of its image, or of its snapshot's memory, is here. Default: `false`, or what the settings say. */
  lazy?: boolean;
  /** Platform of the image: `linux/amd64`. Default: this machine's. */
  platform?: string;
  /** Whether process 1 is an init that reaps orphans. Default: `true`. */
  init?: boolean;
  /** Whether the machine boots although a warm template is there; needs KVM. Default: `false`. */
  cold?: boolean;
  /** Signal that asks the sandbox's first command to end. Default: the image's, or `TERM`. */
  stopSignal?: string;
  // end of what is generated
  /** Called with how far the pull of an image is that is not here. Default: nothing is told. */
  onProgress?: OnProgress;
  /** Gives up, at any time: nothing is left then. Default: nothing does. */
  signal?: AbortSignal;
  /** Any option of a newer `mica` that this list does not have yet. */
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
  const variables = named(options["env"], envs);
  if (variables !== undefined) checkEnvs((options["env"] = variables));
  const labels = named(options["label"], metadata);
  if (labels !== undefined) {
    for (const name of Object.keys(labels)) {
      if (name !== "" && !name.includes("=")) continue;
      throw new InvalidArgumentError(`\`${name}\` is no name of metadata`, { kind: "invalid" });
    }
    options["label"] = labels;
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

/** Values by name of an option, with those of E2B's name for it. */
function named(option: OptionValue, more: Record<string, string> | undefined): Record<string, string> | undefined {
  if (option === undefined || typeof option !== "object" || Array.isArray(option)) return more;
  return { ...(option as Record<string, string>), ...more };
}

function seconds(name: string, milliseconds: number): string {
  return `${timeLimit(name, milliseconds) / 1000}s`;
}

function list(value: OptionValue): readonly string[] {
  if (typeof value === "string") return [value];
  return Array.isArray(value) ? (value as readonly string[]) : [];
}
