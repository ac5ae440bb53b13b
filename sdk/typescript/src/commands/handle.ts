/** A command that was started here, and its result. */

import { setImmediate } from "node:timers/promises";
import { TextDecoder } from "node:util";

import { cancelled } from "../cancel.js";
import type { Data } from "../data.js";
import { DisconnectedError, SandboxError, TimeoutError } from "../errors.js";
import type { Output } from "../protocol/call.js";
import { whole } from "../protocol/number.js";
import type { Exit } from "./process.js";
import type { Running, Sink } from "./running.js";
import { Subscription } from "./subscription.js";
import { decoder, Text } from "./text.js";

/** How a command ended, and what it wrote. */
export interface CommandResult {
  /** 128 and the signal, if one ended it. */
  exitCode: number;
  /** What it wrote to stdout, as UTF-8; U+FFFD for what is not. */
  stdout: string;
  /** What it wrote to stderr, as UTF-8; U+FFFD for what is not. */
  stderr: string;
}

/** A command ended with another exit code than 0. */
export class CommandExitError extends SandboxError implements CommandResult {
  readonly exitCode: number;
  /** What it wrote to stdout. */
  readonly stdout: string;
  /** What it wrote to stderr. */
  readonly stderr: string;

  constructor({ exitCode, stdout, stderr }: CommandResult) {
    super(`the command ended with exit code ${exitCode}${stderr === "" ? "" : `\n${stderr.trimEnd()}`}`);
    this.exitCode = exitCode;
    this.stdout = stdout;
    this.stderr = stderr;
  }
}

/** What becomes of a command's output. */
export interface HandleOptions {
  /** Called with the output as it comes; a promise holds the next one back, and `wait`, but not a command that is killed. */
  onStdout?: (text: string) => void | Promise<void>;
  /** The same for stderr. */
  onStderr?: (text: string) => void | Promise<void>;
  /** Called with the bytes of both. */
  onOutput?: (output: Output) => void | Promise<void>;
  /** Whether `stdout` and `stderr` have the output: true unless given. Without it, the command waits until its output is read. */
  capture?: boolean;
  /** Kills the command. */
  signal?: AbortSignal;
}

const STREAMS = ["stdout", "stderr"] as const;
const MAX_SIGNAL = 64;

/** A command that runs, or has ended. */
export class CommandHandle implements AsyncIterable<Output> {
  readonly #running: Running;
  readonly #texts = { stdout: new Text(), stderr: new Text() };
  readonly #options: HandleOptions;
  /** Fails when the caller takes no more notice of it. */
  readonly #givenUp: Promise<never>;
  #giveUp: ((error: unknown) => void) | undefined;
  /** What callbacks are called with. */
  readonly #outputs: Subscription | undefined;
  /** When they have had all of it. */
  readonly #told: Promise<void> | undefined;

  /** @internal */
  constructor(running: Running, options: HandleOptions) {
    this.#running = running;
    this.#options = options;
    this.#givenUp = new Promise((_, reject) => {
      this.#giveUp = reject;
    });
    this.#givenUp.catch(() => undefined);
    const { capture, onStdout, onStderr, onOutput, signal } = options;
    running.subscribe(this.#take);
    running.ended.then(this.#flush, () => undefined);
    if ((onStdout ?? onStderr ?? onOutput) !== undefined) {
      this.#outputs = new Subscription(running, this.#givenUp, { keepsAlive: false });
      this.#told = this.#tell(this.#outputs);
      this.#told.catch(() => undefined);
    }
    signal?.addEventListener("abort", this.#abort);
    if (signal?.aborted) this.#abort();
    running.exited
      .then(() => this.#told)
      .finally(() => signal?.removeEventListener("abort", this.#abort))
      .catch(() => undefined);
    if (capture !== false) running.begin();
  }

  /** Its process ID in the sandbox. */
  get pid(): number {
    return this.#running.pid;
  }

  /** What it has written until now, since this handle is there. */
  get stdout(): string {
    return this.#texts.stdout.text;
  }

  /** What it has written to stderr so far. */
  get stderr(): string {
    return this.#texts.stderr.text;
  }

  /** Undefined while it runs. */
  get exitCode(): number | undefined {
    return this.#running.exit?.code;
  }

  /**
   * Waits for its end, and for callbacks that have its output.
   *
   * @throws CommandExitError if its exit code is not 0
   * @throws TimeoutError if its time was over
   * @throws CancelledError if `signal` was aborted before, even if the command can't end yet
   */
  async wait(): Promise<CommandResult> {
    this.#running.begin();
    const { code, timedOut } = await this.#running.process.awaited(Promise.race([this.#givenUp, this.#end()]));
    if (timedOut) throw new TimeoutError("the command's time was over", { kind: "timed_out" });
    const result = { exitCode: code, stdout: this.stdout, stderr: this.stderr };
    if (code !== 0) throw new CommandExitError(result);
    return result;
  }

  /** Kills it, and what it has started in its process group; false if it has ended. What is not read holds its end back no more. */
  async kill(): Promise<boolean> {
    return this.#running.kill();
  }

  /** Kills it because of an error, which `wait` then throws. */
  fail(error: unknown): void {
    this.#leave(error);
    this.#running.kill();
  }

  /** Sends it a signal: its number on Linux. */
  async signal(signal: number): Promise<void> {
    this.#running.signal(whole("a signal", signal, 1, MAX_SIGNAL));
  }

  /** Takes no more notice of it. It continues while this process runs, or with `detach`; `commands.connect` finds it again. */
  async disconnect(): Promise<void> {
    this.#leave(new DisconnectedError("the handle was disconnected", { kind: "disconnected" }));
  }

  /** Writes to its stdin, which was asked for with `stdin: true`. */
  sendStdin(data: Data): Promise<void> {
    return this.#running.write(data);
  }

  /** Ends its stdin. */
  closeStdin(): Promise<void> {
    return this.#running.closeStdin();
  }

  /** The output from now on; what is not read holds the command back. */
  [Symbol.asyncIterator](): AsyncIterableIterator<Output> {
    return new Subscription(this.#running, this.#givenUp);
  }

  /** One output from now on, as a web stream. */
  readable(stream: Output["stream"]): ReadableStream<Uint8Array> {
    const outputs = new Subscription(this.#running, this.#givenUp, { stream });
    return new ReadableStream<Uint8Array>(
      {
        async pull(controller): Promise<void> {
          const { done, value } = await outputs.next();
          if (done === true) controller.close();
          else controller.enqueue(value.data);
        },
        async cancel(): Promise<void> {
          await outputs.return();
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

  async #end(): Promise<Exit> {
    const exit = await this.#running.ended;
    // A callback that does not wait has all output even of a command that was killed.
    await Promise.race([this.#told, this.#running.released.then(() => setImmediate())]);
    await this.#outputs?.return();
    return exit;
  }

  #leave(error: unknown): void {
    this.#running.unsubscribe(this.#take);
    this.#running.begin();
    this.#options.signal?.removeEventListener("abort", this.#abort);
    this.#giveUp?.(error);
  }

  async #tell(outputs: Subscription): Promise<void> {
    const { onStdout, onStderr, onOutput } = this.#options;
    const texts = decoders();
    const call = async (stream: Output["stream"], text: string): Promise<void> => {
      if (text !== "") await (stream === "stdout" ? onStdout : onStderr)?.(text);
    };
    for await (const output of outputs) {
      try {
        await call(output.stream, texts[output.stream].decode(output.data, { stream: true }));
        await onOutput?.(output);
      } catch (error) {
        // The caller's own function has failed: the command is of no use any more.
        return this.fail(error);
      }
    }
    for (const stream of STREAMS) await call(stream, texts[stream].decode()).catch((error: unknown) => this.fail(error));
  }

  readonly #take: Sink = ({ stream, data }, taken) => {
    try {
      if (this.#options.capture !== false) this.#texts[stream].add(data);
    } catch (error) {
      this.fail(error);
    }
    taken();
  };

  readonly #flush = (): void => {
    for (const stream of STREAMS) this.#texts[stream].end();
  };

  readonly #abort = (): void => {
    this.fail(cancelled("the command", this.#options.signal));
  };
}

function decoders(): Record<Output["stream"], TextDecoder> {
  return { stdout: decoder(), stderr: decoder() };
}
