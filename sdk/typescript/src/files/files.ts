/** The files of a sandbox, as programs inside see them. */

import { posix } from "node:path";

import { unlessAborted } from "../cancel.js";
import type { Defaults } from "../commands/exec.js";
import { pieces, type Data, type Pieces } from "../data.js";
import { FileExistsError, FileNotFoundError, InvalidArgumentError, ProtocolError } from "../errors.js";
import type { Owner } from "../owner.js";
import { MAX_U32, whole } from "../protocol/number.js";
import { encodeText, type Text } from "../protocol/text.js";
import type { Shared } from "../shared.js";
import { entryBelow, entryInfo, writeInfo, type EntryInfo, type WriteInfo } from "./entry.js";
import { Operation, type Request } from "./operation.js";
import { encodeReply, type Stat } from "./replies.js";
import { WatchHandle, type OnEvent } from "./watch.js";

/** As which user an operation is done. */
export interface FilesystemOptions {
  /** As which user of the sandbox; its own unless given. */
  user?: string | undefined;
}

/** A file that is to be written. */
export interface WriteEntry {
  /** Its path, from the sandbox's working directory. */
  path: string;
  /** Its contents. */
  data: Data;
}

/** How files are written. */
export interface WriteOptions extends FilesystemOptions {
  /** Gives up; a part of the data may be there. */
  signal?: AbortSignal;
}

/** What is watched, and how it ends. */
export interface WatchOptions extends FilesystemOptions {
  /** Also what is below directories in it. */
  recursive?: boolean;
  /** Called at the end: when it is stopped, or with an error, which may be `onEvent`'s. What it throws itself is ignored. */
  onExit?: (error?: Error) => void | Promise<void>;
}

type Reading = FilesystemOptions & {
  /** The first byte that is read. */
  offset?: number;
  /** Most bytes that are read; all unless given. */
  length?: number;
};

/** Bytes of many files that are sent at a time. */
const BATCH = 256 << 10;

/** Most entries of a list: the guest may lie. */
const MAX_ENTRIES = 10_000_000;

/** Paths are from the sandbox's working directory unless they begin with a slash. */
export class Filesystem {
  readonly #owner: Owner;
  readonly #shared: Shared;
  readonly #defaults: Defaults;

  constructor(owner: Owner, shared: Shared, defaults: Defaults) {
    this.#owner = owner;
    this.#shared = shared;
    this.#defaults = defaults;
  }

  /** Reads a file. A stream must be read to its end or cancelled. */
  read(path: string, opts?: Reading & { format?: "text" }): Promise<string>;
  read(path: string, opts: Reading & { format: "bytes" }): Promise<Uint8Array<ArrayBuffer>>;
  read(path: string, opts: Reading & { format: "blob" }): Promise<Blob>;
  read(path: string, opts: Reading & { format: "stream" }): Promise<ReadableStream<Uint8Array>>;
  async read(
    path: string,
    { format = "text", offset = 0, length, user }: Reading & { format?: "text" | "bytes" | "blob" | "stream" } = {},
  ): Promise<string | Uint8Array | Blob | ReadableStream<Uint8Array>> {
    const range = { offset: whole("offset", offset), length: length === undefined ? null : whole("length", length) };
    const operation = await this.#start("read", path, range, user, { isHeld: format === "stream" });
    if (format === "stream") return streamOf(operation);
    const read: Uint8Array[] = [];
    for await (const piece of operation.bytes()) read.push(piece);
    const bytes = joined(read);
    if (format === "blob") return new Blob([bytes]);
    return format === "text" ? Buffer.from(bytes.buffer).toString("utf8") : bytes;
  }

  /** Writes a file, or several, with the directories that are missing. What was there is replaced. */
  write(path: string, data: Data, opts?: WriteOptions): Promise<WriteInfo>;
  write(files: WriteEntry[], opts?: WriteOptions): Promise<WriteInfo[]>;
  async write(
    where: string | WriteEntry[],
    what?: Data | WriteOptions,
    opts: WriteOptions = {},
  ): Promise<WriteInfo | WriteInfo[]> {
    if (typeof where === "string") return this.#write(where, what as Data, opts);
    return this.#writeMany(where, (what ?? {}) as WriteOptions);
  }

  /** Writes files, one after the other, in one operation. */
  async #writeMany(files: WriteEntry[], { user, signal }: WriteOptions): Promise<WriteInfo[]> {
    const [first] = files;
    if (first === undefined) return [];
    const written = files.map(({ path }) => {
      this.#path(path);
      return writeInfo(this.#defaults.path(path));
    });
    const source = this.#pieces(files);
    try {
      const fields = { type: "write_many", existing: "truncate", mode: 0o644, parents: true };
      const begun = await unlessAborted("writing files", signal, source.next());
      const operation = await this.#start("write", first.path, fields, user, { stdin: true });
      await operation.write(source, begun, signal);
    } finally {
      source.return().catch(() => undefined);
    }
    return written;
  }

  /** What `write_many` reads: before the bytes of each piece, of what file they are. */
  async *#pieces(files: WriteEntry[]): Pieces {
    let batch: Uint8Array[] = [];
    let size = 0;
    for (const file of files) {
      const path = this.#path(file.path);
      const add = (data: Uint8Array, continues: boolean): void => {
        const head = encodeReply({ path, size: data.length, continues });
        batch.push(head, data);
        size += head.length + data.length;
      };
      let continues = false;
      for await (const data of pieces(file.data)) {
        add(data, continues);
        continues = true;
        if (size < BATCH) continue;
        yield Buffer.concat(batch);
        [batch, size] = [[], 0];
      }
      if (!continues) add(new Uint8Array(), false);
    }
    yield Buffer.concat(batch);
  }

  async #write(path: string, data: Data, { user, signal }: WriteOptions): Promise<WriteInfo> {
    const what = `writing \`${path}\``;
    const source = pieces(data);
    try {
      // The file keeps what it has until there is something to write.
      const first = await unlessAborted(what, signal, source.next());
      const fields = { existing: "truncate", mode: 0o644, parents: true };
      const operation = await this.#start("write", path, fields, user, { stdin: true });
      await operation.write(source, first, signal);
    } finally {
      source.return().catch(() => undefined);
    }
    return writeInfo(this.#defaults.path(path));
  }

  /** The entries of a directory; with a `depth` above 1 also those of directories in it. */
  async list(path: string, { depth = 1, user }: FilesystemOptions & { depth?: number } = {}): Promise<EntryInfo[]> {
    const operation = await this.#start("list", path, { depth: whole("depth", depth, 1, MAX_U32) }, user);
    const directory = this.#defaults.path(path);
    const entries: EntryInfo[] = [];
    for await (const reply of operation.replies()) {
      if (reply.type !== "entry") throw new ProtocolError(`\`${reply.type}\` in place of an entry`);
      if (entries.length === MAX_ENTRIES) throw new ProtocolError(`more than ${MAX_ENTRIES} entries`);
      entries.push(entryBelow(directory, reply.path, reply.stat, reply.target));
    }
    return entries;
  }

  /** Whether something is there: a symbolic link also if it leads nowhere. */
  async exists(path: string, opts: FilesystemOptions = {}): Promise<boolean> {
    try {
      await this.#stat("look for", path, opts.user);
      return true;
    } catch (error) {
      if (error instanceof FileNotFoundError) return false;
      throw error;
    }
  }

  /** What is known of a file; of a symbolic link itself. */
  async getInfo(path: string, { user }: FilesystemOptions = {}): Promise<EntryInfo> {
    const stat = await this.#stat("look at", path, user);
    if (stat.kind !== "symlink") return entryInfo(this.#defaults.path(path), stat);
    const operation = await this.#start("read the link", path, { type: "read_link" }, user);
    for await (const reply of operation.replies()) {
      if (reply.type === "target") return entryInfo(this.#defaults.path(path), stat, reply.target);
    }
    throw new ProtocolError("a link without a target");
  }

  /** Removes a file, or a directory with all that is in it. */
  async remove(path: string, { user }: FilesystemOptions = {}): Promise<void> {
    await (await this.#start("remove", path, { recursive: true }, user)).done();
  }

  /** Gives a file another path, with the directories that are missing; a file that is there is replaced. */
  async rename(oldPath: string, newPath: string, { user }: FilesystemOptions = {}): Promise<EntryInfo> {
    const from = this.#path(oldPath);
    const fields = { type: "rename", from, to: this.#path(newPath), replace: true };
    const rename = async (): Promise<void> => (await this.#start(`rename \`${oldPath}\` to`, newPath, fields, user)).done();
    try {
      await rename();
    } catch (error) {
      if (!(error instanceof FileNotFoundError) || !(await this.exists(oldPath, { user }))) throw error;
      await this.#makeDirectory(posix.dirname(this.#defaults.path(newPath)), true, user);
      await rename();
    }
    return this.getInfo(newPath, { user });
  }

  /** Makes a directory and those above it; false if it is there. */
  async makeDir(path: string, { user }: FilesystemOptions = {}): Promise<boolean> {
    try {
      // The last one alone says whether it is new.
      await this.#makeDirectory(path, false, user);
      return true;
    } catch (error) {
      if (error instanceof FileNotFoundError) {
        await this.#makeDirectory(path, true, user);
        return true;
      }
      if (error instanceof FileExistsError && (await this.#isDirectory(path, user))) return false;
      throw error;
    }
  }

  /** Calls `onEvent` for each change in a directory from now on. */
  async watchDir(path: string, onEvent: OnEvent, { recursive = false, user, onExit }: WatchOptions = {}): Promise<WatchHandle> {
    const operation = await this.#start("watch", path, { recursive }, user, { end: false, isHeld: true });
    return new WatchHandle(operation, onEvent, onExit);
  }

  async #isDirectory(path: string, user: string | undefined): Promise<boolean> {
    return (await this.#stat("look at", path, user, true)).kind === "directory";
  }

  async #makeDirectory(path: string, parents: boolean, user: string | undefined): Promise<void> {
    const fields = { type: "make_directory", mode: 0o755, parents };
    await (await this.#start("make the directory", path, fields, user)).done();
  }

  async #stat(what: string, path: string, user: string | undefined, follow = false): Promise<Stat> {
    const operation = await this.#start(what, path, { type: "stat", follow }, user);
    for await (const reply of operation.replies()) {
      if (reply.type === "stat") return reply;
    }
    throw new ProtocolError("no attributes");
  }

  /**
   * Begins an operation, of the type `what` unless the fields have another. One that the caller holds has a connection of
   * its own, which ends with it.
   */
  #start(
    what: string,
    path: string,
    fields: Record<string, unknown>,
    user: string | undefined,
    has: { stdin?: boolean; end?: boolean; isHeld?: boolean } = {},
  ): Promise<Operation> {
    const shared = has.isHeld === true ? undefined : this.#shared;
    const purpose = { owner: this.#owner, shared, user: this.#defaults.user(user), what, path };
    const request: Request = { type: what, path: this.#path(path), ...fields };
    return Operation.start(purpose, request, has);
  }

  #path(path: string): Text {
    // It would be the working directory.
    if (path === "") throw new InvalidArgumentError("a path is not empty", { kind: "invalid" });
    return encodeText(this.#defaults.path(path));
  }
}

/** All bytes, in a buffer of their own. */
function joined(pieces: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const all = new Uint8Array(pieces.reduce((size, { length }) => size + length, 0));
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}

function streamOf(operation: Operation): ReadableStream<Uint8Array> {
  const bytes = operation.bytes();
  operation.goOnAlone();
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller): Promise<void> {
        const { done, value } = await operation.awaited(bytes.next());
        if (done === true || value === undefined) controller.close();
        else controller.enqueue(value);
      },
      cancel(): void {
        operation.cancel();
      },
    },
    { highWaterMark: 0 },
  );
}
