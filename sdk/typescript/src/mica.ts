/** Commands of `mica`, for what needs no sandbox. */

import { CancelledError, MicaError } from "./errors.js";
import { server } from "./server.js";
import { pieces, type Data } from "./data.js";

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
 * @throws MicaError with what it says on stderr, if its exit code isn't 0
 */
export async function mica(args: string[], options: MicaOptions = {}): Promise<Buffer> {
  const { connection } = await server();
  options.signal?.throwIfAborted();
  const call = connection.call({ type: "command", args, stdin: options.stdin !== undefined });
  const abort = (): void => call.send({ type: "signal", signal: SIGTERM });
  try {
    await call.answer("started");
    if (options.signal?.aborted) abort();
    options.signal?.addEventListener("abort", abort);
    const fed = options.stdin === undefined ? undefined : feed(options.stdin, call.stdin);
    const stdout: Uint8Array[] = [];
    const stderr = new Lines(options.onLine);
    for await (const { stream, data } of call.outputs()) {
      if (stream === "stderr") await stderr.push(data);
      else if (options.onStdout !== undefined) await options.onStdout(data);
      else stdout.push(data);
    }
    await stderr.end();
    const { code } = await call.answer("exited");
    await fed;
    if (options.signal?.aborted) {
      throw new CancelledError(`mica ${args[0]} was cancelled`, { kind: "cancelled", cause: options.signal.reason });
    }
    if (code !== 0) throw errorOf(stderr.text, Number(code));
    return Buffer.concat(stdout);
  } finally {
    options.signal?.removeEventListener("abort", abort);
    call.over();
  }
}

/** Runs a command of mica that prints JSON. */
export async function micaJson<T>(args: string[]): Promise<T> {
  return JSON.parse((await mica(args)).toString("utf8")) as T;
}

async function feed(data: Data, stdin: { write(bytes: Uint8Array): Promise<void>; end(): Promise<void> }): Promise<void> {
  for await (const piece of pieces(data)) await stdin.write(piece);
  await stdin.end();
}

/** The lines of stderr. */
class Lines {
  text = "";
  readonly #decoder = new TextDecoder();
  readonly #onLine: MicaOptions["onLine"];
  #rest = "";

  constructor(onLine: MicaOptions["onLine"]) {
    this.#onLine = onLine;
  }

  async push(bytes: Uint8Array): Promise<void> {
    const text = this.#decoder.decode(bytes, { stream: true });
    this.text += text;
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop() ?? "";
    for (const line of lines) await this.#onLine?.(line);
  }

  async end(): Promise<void> {
    if (this.#rest !== "") await this.#onLine?.(this.#rest);
  }
}

/** Of the form `mica: what failed`, and the next step indented below it. */
function errorOf(stderr: string, code: number): MicaError {
  const lines = stderr.trimEnd().split("\n");
  const from = lines.findLastIndex((line) => line.startsWith("mica: "));
  const said = lines.slice(Math.max(from, 0));
  const hint = said.slice(1).map((line) => line.trim());
  const message = (said[0] ?? "").replace(/^mica: /, "");
  return new MicaError(message || `exit code ${code}`, code, hint.length > 0 ? hint.join("\n") : undefined);
}
