/** Errors by kind: `kind` is the protocol's word for it, `hint` the next step where mica knows one. */

/** Anything that mica, the owner of a sandbox or a guest refused or failed to do. */
export class SandboxError extends Error {
  /** The protocol's word for what went wrong. */
  readonly kind: string | undefined;
  /** The next step, where one is known. */
  readonly hint: string | undefined;

  constructor(message: string, options: { kind?: string; hint?: string; cause?: unknown } = {}) {
    super(options.hint === undefined ? message : `${message}\nhint: ${options.hint}`, { cause: options.cause });
    this.name = new.target.name;
    this.kind = options.kind;
    this.hint = options.hint;
  }
}

/** Nothing has this name. */
export class NotFoundError extends SandboxError {}
/** No sandbox has this name or ID. */
export class SandboxNotFoundError extends NotFoundError {}
/** Something else has this name. */
export class NameInUseError extends SandboxError {}
/** The sandbox runs, or another one uses the file, the port or the image. */
export class InUseError extends SandboxError {}
/** The sandbox does not run, is about to end, or is paused. */
export class SandboxNotRunningError extends SandboxError {}
/** The sandbox, its owner or mica ended, or is about to, before the request was carried out. */
export class DisconnectedError extends SandboxNotRunningError {}
/** The request is wrong wherever it is made. */
export class InvalidArgumentError extends SandboxError {}
/** The request is not possible for this sandbox, snapshot or backend. */
export class UnsupportedError extends SandboxError {}
/** The guest failed: it did not boot, broke the protocol, or lost something. */
export class GuestError extends SandboxError {}
/** The caller cancelled the request. */
export class CancelledError extends SandboxError {}
/** The command's time was over, a guest was silent, or something else did not happen in time. */
export class TimeoutError extends SandboxError {}
/** A file of the store, a snapshot or a disk is damaged. */
export class DamagedError extends SandboxError {}
/** A disk is full. */
export class NotEnoughSpaceError extends SandboxError {}
/** A registry can't be reached, or does not serve at the moment. */
export class UnreachableError extends SandboxError {}
/** The host failed, or lacks something that is needed. */
export class HostError extends SandboxError {}
/** The other side speaks another version of the protocol, or broke its rules. */
export class ProtocolError extends SandboxError {}

/** A command of mica itself failed; the message is what it said. */
export class MicaError extends SandboxError {
  /** mica's exit code. */
  readonly exitCode: number;

  constructor(message: string, exitCode: number, hint?: string) {
    super(message, hint === undefined ? {} : { hint });
    this.exitCode = exitCode;
  }
}

/** A command could not be started. */
export class CommandStartError extends SandboxError {
  /** `not_found`, `not_executable`, `no_such_user`, `bad_workdir`, `file` or `other`. */
  readonly reason: string;
  /** The system's number; 0 if the error is not its. */
  readonly errno: number;

  constructor(message: string, reason: string, errno: number) {
    super(message, { kind: "start" });
    this.reason = reason;
    this.errno = errno;
  }
}

/** An operation on a file failed. */
export class FileError extends SandboxError {
  /** The system's number; 0 if the error is not its. */
  readonly errno: number;

  constructor(message: string, errno: number) {
    super(message, { kind: "file" });
    this.errno = errno;
  }
}

/** The file is not there. Of {@link NotFoundError}, as in E2B; `errno` is 2. */
export class FileNotFoundError extends NotFoundError {
  /** ENOENT. */
  readonly errno = 2;
}
/** The file is there already. */
export class FileExistsError extends FileError {}
/** The user may not do this to the file. */
export class PermissionError extends FileError {}

/** The kinds of sdk/cases.json: of `mica serve`, and the words of owners. */
export const KINDS: Readonly<Record<string, typeof SandboxError>> = {
  // Of `mica serve`.
  not_found: NotFoundError,
  name_in_use: NameInUseError,
  in_use: InUseError,
  not_running: SandboxNotRunningError,
  invalid: InvalidArgumentError,
  unsupported: UnsupportedError,
  guest: GuestError,
  disconnected: DisconnectedError,
  cancelled: CancelledError,
  timed_out: TimeoutError,
  damaged: DamagedError,
  full: NotEnoughSpaceError,
  unreachable: UnreachableError,
  host: HostError,
  // Of owners.
  too_long: InvalidArgumentError,
  ending: DisconnectedError,
  paused: SandboxNotRunningError,
  silent: TimeoutError,
  unlimited: UnsupportedError,
  not_frozen: UnsupportedError,
  machine: HostError,
  lost: DisconnectedError,
  unwritten: HostError,
};

/** Reasons for which a sandbox is lost that say more than that. */
export const LOST: Readonly<Record<string, typeof SandboxError>> = {
  boot_failed: GuestError,
  protocol: GuestError,
  silent: TimeoutError,
  unflushed: GuestError,
};

/** The fields of a message `failed`. */
export interface Failed {
  kind?: string;
  message?: string;
  hint?: string;
  start?: { reason: string; message: string; errno: number };
  /** `reason`: a word, or an object with it as its name; `console`: the guest's last lines. */
  lost?: { reason?: string | Record<string, unknown>; console?: string };
}

/** The error for a message `failed`. */
export function errorOf(failed: Failed): SandboxError {
  const { kind, hint, start, lost } = failed;
  if (start !== undefined) return new CommandStartError(start.message, start.reason, start.errno);
  const console = lost?.console?.trimEnd() ?? "";
  const message = `${failed.message ?? kind ?? "the request failed"}${console === "" ? "" : `\n${console}`}`;
  const reason = typeof lost?.reason === "string" ? lost.reason : Object.keys(lost?.reason ?? {})[0];
  const constructor = own(LOST, kind === "lost" ? reason : undefined) ?? own(KINDS, kind) ?? SandboxError;
  return new constructor(message, { ...(kind === undefined ? {} : { kind }), ...(hint === undefined ? {} : { hint }) });
}

/** What a table has for a word; nothing for `constructor`. */
function own<T>(table: Readonly<Record<string, T>>, word: string | undefined): T | undefined {
  return word !== undefined && Object.hasOwn(table, word) ? table[word] : undefined;
}

const [EPERM, ENOENT, EACCES, EEXIST, ENOSPC, EROFS, EDQUOT] = [1, 2, 13, 17, 28, 30, 122];

/** The error for an operation on a file that failed. */
export function errorOfFile(what: string, path: string, errno: number, said: string): SandboxError {
  const message = `cannot ${what} \`${path}\`: ${said}`;
  switch (errno) {
    case ENOENT:
      return new FileNotFoundError(message, { kind: "file" });
    case EEXIST:
      return new FileExistsError(message, errno);
    case EPERM:
    case EACCES:
    case EROFS:
      return new PermissionError(message, errno);
    case ENOSPC:
    case EDQUOT:
      return new NotEnoughSpaceError(message, { kind: "full" });
    default:
      return new FileError(message, errno);
  }
}
