/** A connection to `mica serve`, or to the owner of a sandbox. */

import type { Readable, Writable } from "node:stream";

import { DisconnectedError, InvalidArgumentError, ProtocolError } from "../errors.js";
import { Call, type Message, type Output } from "./call.js";
import { Decoder, encode, Kind, MAX_MESSAGE, PREAMBLE } from "./frame.js";
import { halfPair } from "./text.js";

/** Bytes of an output that may be sent before they are consumed: what a request has if it does not say. */
export const WINDOW = 256 << 10;

/** What JSON.stringify makes of half a surrogate pair; a backslash in a string is doubled. */
const HALF_PAIR = /(?<!\\)(?:\\\\)*\\ud[89a-f]/;

/** Both directions of bytes. */
export interface Transport {
  from: Readable;
  to: Writable;
  /** What the other side is called in errors. */
  name: string;
  /** Called when the first request begins, and when none is left. */
  busy?(isBusy: boolean): void;
}

export class Connection {
  readonly #transport: Transport;
  readonly #decoder = new Decoder();
  readonly #calls = new Map<number, Call>();
  /** Messages without a request. */
  readonly #events = this.#newCall(0);
  #last = 0;
  #error: Error | undefined;
  #onEnd: (() => void) | undefined;

  constructor(transport: Transport) {
    this.#transport = transport;
    const { from, to, name } = transport;
    to.setMaxListeners(0);
    to.write(PREAMBLE);
    from.on("data", (bytes: Uint8Array) => this.#received(bytes));
    const ended = (): void => this.#end(new DisconnectedError(`the connection to ${name} has ended`, { kind: "disconnected" }));
    from.on("end", ended).on("close", ended).on("error", ended);
    to.on("error", ended);
  }

  /**
   * Makes a request.
   *
   * @throws InvalidArgumentError if it is longer than the protocol allows
   */
  call(request: object): Call {
    if (this.#error !== undefined) throw this.#error;
    do this.#last = (this.#last % 0xffff_ffff) + 1;
    while (this.#calls.has(this.#last));
    const call = this.#newCall(this.#last);
    if (this.#calls.size === 0) this.#transport.busy?.(true);
    this.#calls.set(call.number, call);
    try {
      this.#send(call.number, request, (error) => {
        if (error) call.isUnsent = true;
      });
    } catch (error) {
      call.over();
      throw error;
    }
    return call;
  }

  /** Makes a request that has one answer. */
  async ask(request: object, type: string): Promise<Message> {
    const call = this.call(request);
    try {
      return await call.answer(type);
    } finally {
      call.over();
    }
  }

  /** The next message without a request. */
  event(type: string): Promise<Message> {
    return this.#events.answer(type);
  }

  /** Whether it has ended. */
  get isOver(): boolean {
    return this.#error !== undefined;
  }

  /** Calls this when the connection has ended. */
  onEnd(callback: () => void): void {
    this.#onEnd = callback;
  }

  /** Ends it, and all requests with it by this error. */
  close(error: Error = new DisconnectedError("the connection was closed", { kind: "disconnected" })): void {
    this.#end(error);
  }

  #newCall(number: number): Call {
    return new Call(number, WINDOW, {
      send: (of, message) => this.#send(of, message),
      stdin: (bytes) => this.#write(encode(Kind.stdin, number, bytes)),
      over: (of) => {
        if (this.#calls.delete(of) && this.#calls.size === 0) this.#transport.busy?.(false);
      },
    });
  }

  /** Sends a message; `sent` is called with an error if a part of it can't be. */
  #send(number: number, message: object, sent?: (error?: Error | null) => void): void {
    const json = JSON.stringify(message);
    if (HALF_PAIR.test(json)) throw halfPair();
    const body = Buffer.from(json);
    if (body.length > MAX_MESSAGE) {
      throw new InvalidArgumentError("the request is longer than a frame of the protocol", { kind: "invalid" });
    }
    void this.#write(encode(Kind.message, number, body), sent);
  }

  #write(frame: Buffer, sent?: (error?: Error | null) => void): Promise<void> {
    const { to } = this.#transport;
    if (this.#error !== undefined || to.write(frame, sent)) return Promise.resolve();
    return new Promise((resolve) => {
      const done = (): void => {
        to.off("drain", done).off("close", done);
        resolve();
      };
      to.on("drain", done).on("close", done);
    });
  }

  #received(bytes: Uint8Array): void {
    try {
      for (const { kind, number, body } of this.#decoder.push(bytes)) {
        const call = number === 0 ? this.#events : this.#calls.get(number);
        // About a request that is over: nothing waits for it.
        if (call === undefined) continue;
        if (kind === Kind.message) call.received(parse(body));
        else call.output(stream(kind), body);
      }
    } catch (error) {
      this.#end(error instanceof Error ? error : new ProtocolError(String(error)));
    }
  }

  #end(error: Error): void {
    if (this.#error !== undefined) return;
    this.#error = error;
    for (const call of [...this.#calls.values(), this.#events]) call.over(error);
    const { from, to } = this.#transport;
    to.destroy();
    from.destroy();
    this.#onEnd?.();
  }
}

function stream(kind: number): Output["stream"] {
  return kind === Kind.stdout ? "stdout" : "stderr";
}

function parse(body: Uint8Array): Message {
  try {
    const message: unknown = JSON.parse(Buffer.from(body).toString("utf8"));
    if (typeof message === "object" && message !== null && typeof (message as Message).type === "string") return message as Message;
  } catch {
    // Told below.
  }
  throw new ProtocolError("a message that is not JSON with a type");
}
