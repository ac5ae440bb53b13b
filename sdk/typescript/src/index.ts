/** Micabox: sandboxes from OCI images, each in a virtual machine of its own. */

export { Sandbox, Sandbox as default } from "./sandbox/sandbox.js";
export { SandboxPaginator, type SandboxListOptions } from "./sandbox/find.js";
export type { Change, SandboxInfo, SandboxStats } from "./sandbox/info.js";
export type { OptionValue, SandboxOptions } from "./sandbox/options.js";
export type { Commands, CommandStartOptions, ProcessInfo } from "./commands/commands.js";
export { CommandExitError, CommandHandle, type CommandResult, type HandleOptions } from "./commands/handle.js";
export type { ExecOptions } from "./commands/exec.js";
export type { Pty, PtyConnectOptions, PtyCreateOptions, PtySize } from "./commands/pty.js";
export type { Output } from "./protocol/call.js";
export type { Filesystem, FilesystemOptions, WatchOptions, WriteEntry, WriteOptions } from "./files/files.js";
export { FileType, type EntryInfo, type WriteInfo } from "./files/entry.js";
export { FilesystemEventType, type FilesystemEvent, type OnEvent, type WatchHandle } from "./files/watch.js";
export type { Data } from "./data.js";
export { images, type ImageInfo, type PullOptions, type TransferOptions } from "./store/images.js";
export type { LayerProgress, OnProgress, PullProgress } from "./store/progress.js";
export { volumes, type VolumeInfo } from "./store/volumes.js";
export { snapshots, type SnapshotInfo } from "./store/snapshots.js";
export {
  CancelledError,
  CommandStartError,
  DamagedError,
  DisconnectedError,
  FileError,
  FileExistsError,
  FileNotFoundError,
  GuestError,
  HostError,
  InUseError,
  InvalidArgumentError,
  MicaError,
  NameInUseError,
  NotEnoughSpaceError,
  NotFoundError,
  PermissionError,
  ProtocolError,
  SandboxError,
  SandboxNotFoundError,
  SandboxNotRunningError,
  TimeoutError,
  UnreachableError,
  UnsupportedError,
} from "./errors.js";
