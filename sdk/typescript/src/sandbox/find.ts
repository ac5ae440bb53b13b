/** Sandboxes that are there. */

import { SandboxError, SandboxNotFoundError } from "../errors.js";
import { micaJson } from "../mica.js";
import { sandboxInfo, type SandboxInfo } from "./info.js";
import type { SandboxRecord } from "./record.js";

/** Which sandboxes are listed. */
export interface SandboxListOptions {
  /** Default: those that run or are paused. */
  query?: {
    /** Labels that it has. */
    metadata?: Record<string, string>;
    /** States; `running` and `paused` unless given. */
    state?: readonly string[];
  };
}

/** Lists sandboxes, all at once: for `for await`, or as E2B's paginator. */
export class SandboxPaginator implements AsyncIterable<SandboxInfo> {
  readonly #opts: SandboxListOptions;
  #hasNext = true;

  constructor(opts: SandboxListOptions) {
    this.#opts = opts;
  }

  /** Whether `nextItems` was not called yet. */
  get hasNext(): boolean {
    return this.#hasNext;
  }

  /** All of them, once; as in E2B, an error where `hasNext` is false. */
  async nextItems(): Promise<SandboxInfo[]> {
    if (!this.#hasNext) throw new SandboxError("no more sandboxes to list");
    this.#hasNext = false;
    const { metadata = {}, state = ["running", "paused"] } = this.#opts.query ?? {};
    const labels = Object.entries(metadata).map(([name, value]) => `--filter=label=${name}=${value}`);
    const all = await micaJson<SandboxRecord[]>(["ps", "--all", "--json", ...labels]);
    return all.map(sandboxInfo).filter((info) => state.includes(info.state));
  }

  /** All of them, once. */
  async *[Symbol.asyncIterator](): AsyncGenerator<SandboxInfo, void, undefined> {
    yield* await this.nextItems();
  }
}

/** The record of the sandbox with this name or ID, or the only one whose ID begins so. */
export async function find(name: string): Promise<SandboxRecord> {
  const all = await micaJson<SandboxRecord[]>(["ps", "--all", "--json"]);
  const named = all.filter((one) => one.name === name || one.id === name);
  const found = named.length > 0 || name === "" ? named : all.filter((one) => one.id.startsWith(name));
  const [only] = found;
  if (only !== undefined && found.length === 1) return only;
  const how = only === undefined ? "no sandbox is called" : "several sandboxes have an ID that begins with";
  throw new SandboxNotFoundError(`${how} \`${name}\``, { kind: "not_found" });
}
