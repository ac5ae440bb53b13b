/** One operation on files: a command of the agent's own. */

import { cancelled } from "../cancel.js";
import { Process } from "../commands/process.js";
import { feed, type Pieces } from "../data.js";
import { CommandStartError, errorOfFile, ProtocolError } from "../errors.js";
import type { Owner } from "../owner.js";
import type { Shared } from "../shared.js";
import { textString } from "../protocol/text.js";
import { ReplyDecoder, type Reply } from "./replies.js";

const FILES = "\0files";

/** Milliseconds that the guest may be silent. */
export const ANSWER_TIMEOUT = 300_000;

/** Most bytes of replies after an operation's end: the guest may lie. */
const MAX_FAILURES = 1 << 20;

export interface Request {
  type: string;
  [field: string]: unknown;
}

/** What an operation is for, in errors. */
export interface Purpose {
  owner: Owner;
  /** The connection of operations that are over with their call; undefined for one that the caller holds. */
  shared: Shared | undefined;
  user: string;
  /** `read`, `list` and so on. */
  what: string;
  path: string;
}

/** An operation that has begun. */
export class Operation {
  readonly #process: Process;
  readonly #purpose: Purpose;
  readonly #failures = new ReplyDecoder();
  #failed: Reply | undefined;
  #sizeOfFailures = 0;

  private constructor(process: Process, purpose: Purpose) {
    this.#process = process;
    this.#purpose = purpose;
  }

  /** Begins an operation; `hasStdin` for one that takes bytes, `isEndless` for one that may be silent. */
  static async start(purpose: Purpose, request: Request, has: { stdin?: boolean; end?: boolean } = {}): Promise<Operation> {
    const { owner, shared, user } = purpose;
    try {
      const exec = {
        argv: [FILES, JSON.stringify(request)],
        user,
        stdin: has.stdin === true ? "frames" : "null",
        answer_timeout: has.end === false ? 0 : ANSWER_TIMEOUT,
      };
      const process = await Process.start(owner, exec, shared);
      return new Operation(process, purpose);
    } catch (error) {
      if (!(error instanceof CommandStartError) || error.reason !== "file") throw error;
      throw errorOfFile(purpose.what, purpose.path, error.errno, error.message);
    }
  }

  /** What is read, to the operation's end. */
  async *bytes(): AsyncGenerator<Uint8Array, void, undefined> {
    let isOver = false;
    try {
      for await (const { stream, data } of this.#process.outputs()) {
        if (stream === "stdout") yield data;
        else this.#complain(data);
      }
      isOver = true;
      await this.#end();
    } finally {
      if (!isOver) this.#process.close();
    }
  }

  /** The replies, to the operation's end. */
  async *replies(): AsyncGenerator<Reply, void, undefined> {
    const decoder = new ReplyDecoder();
    for await (const bytes of this.bytes()) yield* decoder.push(bytes);
  }

  /** Waits for the end of an operation that says nothing. */
  async done(): Promise<void> {
    for await (const bytes of this.bytes()) {
      throw new ProtocolError(`${bytes.length} bytes from an operation that has none`);
    }
  }

  /** Writes all pieces, of which the first was taken, and waits for the end. If their source fails, half of it is there. */
  async write(source: Pieces, first: IteratorResult<Uint8Array, void>, signal?: AbortSignal): Promise<void> {
    let failed: { error: unknown } | undefined;
    const fail = (error: unknown): void => {
      failed ??= { error };
      this.cancel();
    };
    const abort = (): void => fail(cancelled(`writing \`${this.#purpose.path}\``, signal));
    signal?.addEventListener("abort", abort);
    if (signal?.aborted) abort();
    else feed(source, this.#process.stdin, Promise.resolve(first)).catch(fail);
    try {
      await this.done();
    } catch (error) {
      throw failed === undefined ? error : (failed as { error: unknown }).error;
    } finally {
      signal?.removeEventListener("abort", abort);
    }
  }

  /** Keeps this process alive from now on only while something is awaited. */
  goOnAlone(): void {
    this.#process.goOnAlone();
  }

  /** What the caller waits for: this process lives as long. */
  awaited<T>(work: Promise<T>): Promise<T> {
    return this.#process.awaited(work);
  }

  /** Ends it before its end. */
  cancel(): void {
    this.#process.close();
  }

  #complain(data: Uint8Array): void {
    if ((this.#sizeOfFailures += data.length) > MAX_FAILURES) throw new ProtocolError("an operation complains without end");
    this.#failed ??= this.#failures.push(data).find(({ type }) => type === "failed");
  }

  async #end(): Promise<void> {
    const { code } = await this.#process.exit();
    if (code === 0) return;
    if (this.#failed?.type !== "failed") throw new ProtocolError(`an operation on files ended with exit code ${code}`);
    const { path, errno, message } = this.#failed;
    const named = path === undefined ? "" : textString(path);
    throw errorOfFile(this.#purpose.what, named || this.#purpose.path, errno, message);
  }
}
