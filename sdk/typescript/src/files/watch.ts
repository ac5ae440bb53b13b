/** Changes of a directory. */

import { AsyncLocalStorage } from "node:async_hooks";

import { textString } from "../protocol/text.js";
import type { Operation } from "./operation.js";
import type { Reply } from "./replies.js";

/** Kinds of changes, by the names that E2B has. */
export const FilesystemEventType = {
  /** Its mode, owner, times or attributes were changed. */
  CHMOD: "chmod",
  /** It was made, or moved here. */
  CREATE: "create",
  /** It was removed. */
  REMOVE: "remove",
  /** It was moved away. */
  RENAME: "rename",
  /** Its contents were changed. */
  WRITE: "write",
  /** Changes were lost: list the directory. E2B has none. */
  OVERFLOW: "overflow",
} as const;

/** A kind of change. */
export type FilesystemEventType = (typeof FilesystemEventType)[keyof typeof FilesystemEventType];

/** A change. */
export interface FilesystemEvent {
  /** The path, from the directory; empty for itself. */
  name: string;
  /** What has happened. */
  type: FilesystemEventType;
}

/** What inotify's words are in E2B's. A file that is closed after writing was reported when it was written. */
const TYPES: Record<string, FilesystemEventType> = {
  created: "create",
  moved_to: "create",
  modified: "write",
  attributes: "chmod",
  removed: "remove",
  moved_from: "rename",
  overflow: "overflow",
};

/** Called with a change; a promise holds the next one back. */
export type OnEvent = (event: FilesystemEvent) => void | Promise<void>;

/** Whose callback runs. */
const calling = new AsyncLocalStorage<WatchHandle>();

/** Watches until it is stopped, or the directory is gone. */
export class WatchHandle implements AsyncDisposable {
  readonly #operation: Operation;
  readonly #ended: Promise<void>;
  #isStopped = false;

  constructor(operation: Operation, onEvent: OnEvent, onExit?: (error?: Error) => void | Promise<void>) {
    this.#operation = operation;
    // A program that is done ends, whatever it watches.
    operation.goOnAlone();
    const exit = (error?: Error): unknown => calling.run(this, () => onExit?.(this.#isStopped ? undefined : error));
    // What `onExit` throws is no failure of the watch's.
    this.#ended = this.#run(onEvent)
      .then(() => exit(), exit)
      .then(
        () => undefined,
        () => undefined,
      );
  }

  /** Stops; no event comes after it. Waits for a callback that runs, unless that is what calls it. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#operation.cancel();
    if (calling.getStore() !== this) await this.#ended;
  }

  /** Stops it: for `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  async #run(onEvent: OnEvent): Promise<void> {
    for await (const reply of this.#operation.replies()) {
      const event = eventOf(reply);
      if (this.#isStopped) return;
      if (event !== undefined) await calling.run(this, () => onEvent(event));
    }
  }
}

function eventOf(reply: Reply): FilesystemEvent | undefined {
  if (reply.type !== "event") return undefined;
  const type = TYPES[reply.change];
  return type === undefined ? undefined : { name: textString(reply.path), type };
}
