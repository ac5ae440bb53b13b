/** Commands of `mica`, for what needs no sandbox. */

import { checkSignal, unlessAborted } from "./cancel.js";
import { feed, pieces, type Data } from "./data.js";
import { MicaError, errorOf as errorOfKind, type Failed, type SandboxError } from "./errors.js";
import { server } from "./server.js";

export interface MicaOptions {
  /** Bytes for stdin; none unless given. */
  stdin?: Data;
  /** Called with stdout's bytes, which are then not returned. A promise holds the next ones back. */
  onStdout?: (bytes: Uint8Array) => void | Promise<void>;
  /** Called with each line of stderr. */
  onLine?: (line: string) => void | Promise<void>;
  /** Ends the command. */
  signal?: AbortSignal;
}

const SIGTERM = 15;

/**
 * Runs a command of mica; returns its stdout.
 *
 * @throws SandboxError by its kind, or MicaError, if its exit code isn't 0
 */
export async function mica(args: string[], options: MicaOptions = {}): Promise<Buffer> {
  const what = `mica ${args[0]}`;
  const source = options.stdin === undefined ? undefined : pieces(options.stdin);
  const { connection } = await unlessAborted(what, options.signal, server());
  const call = connection.call({ type: "command", args, stdin: source !== undefined });
  const abort = (): void => call.send({ type: "signal", signal: SIGTERM });
  let isOver = false;
  try {
    await call.answer("started");
    if (options.signal?.aborted) abort();
    options.signal?.addEventListener("abort", abort);
    let failed: { error: unknown } | undefined;
    const fail = (error: unknown): void => {
      failed = { error };
      abort();
    };
    if (source !== undefined) feed(source, call.stdin).catch(fail);
    const stdout: Uint8Array[] = [];
    const stderr = new Lines(options.onLine);
    for await (const { stream, data } of call.outputs()) {
      if (stream === "stderr") await stderr.push(data);
      else if (options.onStdout !== undefined) await options.onStdout(data);
      else stdout.push(data);
    }
    await stderr.end();
    const { code, failed: why } = await call.answer("exited");
    isOver = true;
    if (failed !== undefined) throw (failed as { error: unknown }).error;
    if (code !== 0) checkSignal(what, options.signal);
    if (code !== 0) throw errorOf((why as Failed | undefined) ?? { message: stderr.text.trim() }, Number(code));
    return Buffer.concat(stdout);
  } finally {
    options.signal?.removeEventListener("abort", abort);
    // The caller's own function has failed.
    if (!isOver) abort();
    call.over();
  }
}

/** Runs a command of mica that prints JSON. */
export async function micaJson<T>(args: string[]): Promise<T> {
  return JSON.parse((await mica(args)).toString("utf8")) as T;
}

/** The lines of stderr. */
class Lines {
  /** All of it, if nothing else takes it. */
  text = "";
  readonly #decoder = new TextDecoder();
  readonly #onLine: MicaOptions["onLine"];
  #rest = "";

  constructor(onLine: MicaOptions["onLine"]) {
    this.#onLine = onLine;
  }

  async push(bytes: Uint8Array): Promise<void> {
    const text = this.#decoder.decode(bytes, { stream: true });
    if (this.#onLine === undefined) this.text += text;
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop() ?? "";
    for (const line of lines) await this.#onLine?.(line);
  }

  async end(): Promise<void> {
    if (this.#rest !== "") await this.#onLine?.(this.#rest);
  }
}

function errorOf(failed: Failed, code: number): SandboxError {
  if (failed.kind !== undefined) return errorOfKind(failed);
  return new MicaError(failed.message || `exit code ${code}`, code, failed.hint);
}
