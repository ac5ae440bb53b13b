/** A request, and all that comes about it. */

import { errorOf, ProtocolError, type Failed } from "../errors.js";
import { Input, type SendStdin } from "./input.js";
import { Queue } from "./queue.js";

/** A message from the other side. */
export type Message = { type: string } & Failed & Record<string, unknown>;

/** Bytes of an output of a command. */
export interface Output {
  /** Where it was written. */
  stream: "stdout" | "stderr";
  /** The bytes; at least one. */
  data: Uint8Array;
}

/** What a call needs of its connection. */
export interface Line {
  send(number: number, message: object): void;
  stdin: SendStdin;
  over(number: number): void;
}

export class Call {
  readonly number: number;
  readonly stdin: Input;
  readonly #line: Line;
  readonly #answers = new Queue<Message>();
  readonly #outputs = new Queue<Output>();
  /** Bytes of each output that the other side may still send. */
  readonly #open: { stdout: number; stderr: number };
  /** Takes messages that are no answers. */
  #hear: ((message: Message) => void) | undefined;
  #isOver = false;
  /** Whether the connection had ended before the request was sent: nothing of it was done. */
  isUnsent = false;

  constructor(number: number, window: number, line: Line) {
    this.number = number;
    this.stdin = new Input(line.stdin);
    this.#line = line;
    this.#open = { stdout: window, stderr: window };
  }

  /** Takes a message from the connection. */
  received(message: Message): void {
    switch (message.type) {
      case "credit":
        this.stdin.grant(Number(message["bytes"]));
        return;
      case "stdin_closed":
        this.stdin.close();
        return;
      case "attached":
        if (message["stdin"] !== true) this.stdin.close();
        this.stdin.grant(Number(message["window"]));
        break;
      case "started":
        this.stdin.grant(Number(message["window"]));
        break;
      case "progress":
      case "notice":
        this.#hear?.(message);
        return;
      case "exited":
      case "failed":
        this.over();
        break;
    }
    this.#answers.push(message);
  }

  /**
   * Takes bytes from the connection.
   *
   * @throws ProtocolError if more come than were granted
   */
  output(stream: Output["stream"], data: Uint8Array): void {
    this.#open[stream] -= data.length;
    if (this.#open[stream] < 0) throw new ProtocolError(`more of ${stream} than was granted`);
    if (data.length > 0) this.#outputs.push({ stream, data });
  }

  /** Calls this with messages about how far the request is. */
  onProgress(hear: (message: Message) => void): void {
    this.#hear = hear;
  }

  /** The next message about the request, which must be of this type. */
  async answer(type: string): Promise<Message> {
    const message = await this.#answers.next();
    if (message === undefined) throw new ProtocolError(`\`${type}\` does not come: the request is over`);
    if (message.type === "failed") throw errorOf(message);
    if (message.type !== type) throw new ProtocolError(`\`${message.type}\` in place of \`${type}\``);
    return message;
  }

  /** The outputs as they come. More of them is granted when the next one is asked for. */
  async *outputs(): AsyncGenerator<Output, void, undefined> {
    for await (const output of this.arrivals()) {
      yield output;
      this.consumed(output);
    }
  }

  /** The outputs as they come, a window of each at most; more is granted by `consumed`. */
  async *arrivals(): AsyncGenerator<Output, void, undefined> {
    for (let output; (output = await this.#outputs.next()) !== undefined; ) yield output;
  }

  /** Grants as much again as this output has. */
  consumed({ stream, data }: Output): void {
    this.#open[stream] += data.length;
    if (!this.#isOver) this.send({ type: "credit", stream, bytes: data.length });
  }

  /** Says something more about the request, which is not answered. */
  send(message: object): void {
    this.#line.send(this.number, message);
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  /** The request is over, or with an error, the connection. */
  over(error?: Error): void {
    if (error !== undefined) this.#answers.end(error);
    this.#outputs.end(error);
    this.stdin.close();
    if (this.#isOver) return;
    this.#isOver = true;
    this.#line.over(this.number);
  }
}
