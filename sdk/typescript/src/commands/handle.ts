/** A command that was started here, and its result. */

import { CancelledError, DisconnectedError, NotFoundError, SandboxError, TimeoutError } from "../errors.js";
import type { Data } from "../data.js";
import type { Output } from "../protocol/call.js";
import type { Running } from "./running.js";
import { Subscription } from "./subscription.js";

/** How a command ended, and what it wrote. */
export interface CommandResult {
  /** 128 and the signal, if one ended it. */
  exitCode: number;
  stdout: string;
  stderr: string;
}

/** A command ended with another exit code than 0. */
export class CommandExitError extends SandboxError implements CommandResult {
  readonly exitCode: number;
  readonly stdout: string;
  readonly stderr: string;

  constructor({ exitCode, stdout, stderr }: CommandResult) {
    super(`the command ended with exit code ${exitCode}${stderr === "" ? "" : `\n${stderr.trimEnd()}`}`);
    this.exitCode = exitCode;
    this.stdout = stdout;
    this.stderr = stderr;
  }
}

export interface HandleOptions {
  /** Called with the output as it comes; a promise holds the next one back. */
  onStdout?: (text: string) => void | Promise<void>;
  onStderr?: (text: string) => void | Promise<void>;
  /** Called with the bytes of both. */
  onOutput?: (output: Output) => void | Promise<void>;
  /** Whether `stdout` and `stderr` have the output: true unless given. Without it, the command waits until its output is read. */
  capture?: boolean;
  /** Kills the command. */
  signal?: AbortSignal;
}

export class CommandHandle implements AsyncIterable<Output> {
  readonly #running: Running;
  readonly #texts = { stdout: "", stderr: "" };
  readonly #decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
  readonly #options: HandleOptions;
  #failure: unknown;
  #disconnect: ((error: Error) => void) | undefined;
  readonly #disconnected: Promise<never>;

  constructor(running: Running, options: HandleOptions) {
    this.#running = running;
    this.#options = options;
    this.#disconnected = new Promise((_, reject) => {
      this.#disconnect = reject;
    });
    this.#disconnected.catch(() => undefined);
    running.subscribe(this.#take);
    options.signal?.addEventListener("abort", this.#abort);
    if (options.signal?.aborted) this.#abort();
    running.ended.finally(() => options.signal?.removeEventListener("abort", this.#abort)).catch(() => undefined);
    const hasReader = options.onStdout ?? options.onStderr ?? options.onOutput;
    if (options.capture !== false || hasReader !== undefined) running.begin();
  }

  /** Its process ID in the sandbox. */
  get pid(): number {
    return this.#running.pid;
  }

  /** What it has written until now, since this handle is there. */
  get stdout(): string {
    return this.#texts.stdout;
  }

  get stderr(): string {
    return this.#texts.stderr;
  }

  /** Undefined while it runs. */
  get exitCode(): number | undefined {
    return this.#running.exit?.code;
  }

  /**
   * Waits for its end.
   *
   * @throws CommandExitError if its exit code is not 0
   * @throws TimeoutError if its time was over
   */
  async wait(): Promise<CommandResult> {
    this.#running.begin();
    const { code, timedOut } = await Promise.race([this.#running.ended, this.#disconnected]);
    const { signal } = this.#options;
    if (signal?.aborted) throw new CancelledError("the command was cancelled", { kind: "cancelled", cause: signal.reason });
    if (this.#failure !== undefined) throw this.#failure;
    if (timedOut) throw new TimeoutError("the command's time was over", { kind: "timed_out" });
    const result = { exitCode: code, stdout: this.stdout, stderr: this.stderr };
    if (code !== 0) throw new CommandExitError(result);
    return result;
  }

  /** Kills it, and what it has started in its process group; false if it has ended. */
  kill(): Promise<boolean> {
    return this.#running.kill();
  }

  /** Kills it because of an error, which `wait` then throws. */
  fail(error: unknown): void {
    this.#failure ??= error;
    void this.kill();
  }

  /** Sends it a signal: its number on Linux. */
  async signal(signal: number): Promise<void> {
    this.#running.process.signal(signal);
  }

  /** Takes no more notice of it. It continues while this process runs, or with `detach`; `commands.connect` finds it again. */
  async disconnect(): Promise<void> {
    this.#running.unsubscribe(this.#take);
    this.#running.begin();
    this.#disconnect?.(new DisconnectedError("the handle was disconnected", { kind: "disconnected" }));
  }

  /** Writes to its stdin, which was asked for with `stdin: true`. */
  async sendStdin(data: Data): Promise<void> {
    if (this.#running.exit !== undefined) throw new NotFoundError("the command has ended", { kind: "not_found" });
    await this.#running.write(data);
  }

  /** Ends its stdin. */
  closeStdin(): Promise<void> {
    return this.#running.process.stdin.end();
  }

  /** The output from now on; what is not read holds the command back. */
  [Symbol.asyncIterator](): AsyncIterableIterator<Output> {
    return new Subscription(this.#running);
  }

  /** One output from now on, as a web stream. */
  readable(stream: Output["stream"]): ReadableStream<Uint8Array> {
    const outputs = this[Symbol.asyncIterator]();
    return new ReadableStream<Uint8Array>(
      {
        async pull(controller): Promise<void> {
          for (;;) {
            const { done, value } = await outputs.next();
            if (done === true) return controller.close();
            if (value.stream === stream) return controller.enqueue(value.data);
          }
        },
        async cancel(): Promise<void> {
          await outputs.return?.();
        },
      },
      { highWaterMark: 0 },
    );
  }

  /** Its stdin as a web stream. */
  writable(): WritableStream<Uint8Array> {
    return new WritableStream<Uint8Array>({
      write: (bytes) => this.sendStdin(bytes),
      close: () => this.closeStdin(),
      abort: () => this.closeStdin(),
    });
  }

  readonly #take = async (output: Output): Promise<void> => {
    const { stream, data } = output;
    const { capture, onStdout, onStderr, onOutput } = this.#options;
    const onText = stream === "stdout" ? onStdout : onStderr;
    try {
      if (capture !== false || onText !== undefined) {
        const text = this.#decoders[stream].decode(data, { stream: true });
        if (capture !== false) this.#texts[stream] += text;
        await onText?.(text);
      }
      await onOutput?.(output);
    } catch (error) {
      // The caller's own function has failed: the command is of no use any more.
      this.fail(error);
    }
  };

  readonly #abort = (): void => {
    void this.kill();
  };
}
