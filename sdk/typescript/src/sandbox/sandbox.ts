/** A sandbox: how it is made and found, and what can be done with it as a whole. */

import { randomBytes } from "node:crypto";
import { join } from "node:path";

import { Commands } from "../commands/commands.js";
import { Defaults } from "../commands/exec.js";
import { Pty } from "../commands/pty.js";
import { NotFoundError, SandboxNotRunningError } from "../errors.js";
import { Filesystem } from "../files/files.js";
import { mica, micaJson } from "../mica.js";
import { askOwner, type Owner } from "../owner.js";
import { MAX_U32, timeLimit, whole } from "../protocol/number.js";
import { server } from "../server.js";
import { Shared } from "../shared.js";
import { snapshots, type SnapshotInfo } from "../store/snapshots.js";
import { find, SandboxPaginator, type SandboxListOptions } from "./find.js";
import { change, sandboxInfo, sandboxStats } from "./info.js";
import type { Change, ListedChange, SandboxInfo, SandboxStats } from "./info.js";
import { make, type Made } from "./make.js";
import { requestOptions, type SandboxOptions } from "./options.js";
import { publishedAt, type SandboxRecord } from "./record.js";

/** Milliseconds between the stop signal and SIGKILL, as for `mica stop`. */
const GRACE = 10_000;

export class Sandbox implements AsyncDisposable {
  /** Its ID. */
  readonly sandboxId: string;
  /** Its commands. */
  readonly commands: Commands;
  /** Its files. */
  readonly files: Filesystem;
  /** Its terminals. */
  readonly pty: Pty;
  readonly #owner: Owner;
  readonly #shared: Shared;
  #record: SandboxRecord;

  private constructor({ directory, record }: Made) {
    this.sandboxId = record.id;
    this.#record = record;
    this.#owner = { directory, name: record.name };
    this.#shared = new Shared(this.#owner);
    const defaults = new Defaults(record);
    this.commands = new Commands(this.#owner, defaults);
    this.files = new Filesystem(this.#owner, this.#shared, defaults);
    this.pty = new Pty(this.commands);
  }

  /**
   * Makes a sandbox from an image, or with `rootDisk` or `snapshot` without one. It ends with this process, unless it is
   * detached. An image that is not here is pulled.
   */
  static create(image: string, opts?: SandboxOptions): Promise<Sandbox>;
  static create(opts: SandboxOptions): Promise<Sandbox>;
  static async create(from: string | SandboxOptions, opts: SandboxOptions = {}): Promise<Sandbox> {
    const image = typeof from === "string" ? from : undefined;
    const given = typeof from === "string" ? opts : from;
    const options = requestOptions(given);
    const progress = given.onProgress !== undefined;
    const request = { type: "create", ...(image === undefined ? {} : { image }), options, progress };
    const [made] = await make(request, given);
    if (made === undefined) throw new NotFoundError("mica has made no sandbox");
    return new Sandbox(made);
  }

  /** Connects to a sandbox by its name or ID. A paused one continues, and one that has ended and kept its disk is started. */
  static async connect(name: string): Promise<Sandbox> {
    let record = await find(name);
    if (!["running", "paused"].includes(sandboxInfo(record).state)) {
      await mica(["start", "--", record.id]);
      record = await find(record.id);
    }
    const { home } = await server();
    const sandbox = new Sandbox({ directory: join(home, "sandboxes", record.id), record });
    if (sandboxInfo(record).state === "paused") await sandbox.resume();
    return sandbox;
  }

  /** Lets it continue if it is paused, and starts it again if it has ended and kept its disk. */
  async connect(): Promise<this> {
    const again = await Sandbox.connect(this.sandboxId);
    this.#record = again.#record;
    return this;
  }

  /** Lists sandboxes: those that run or are paused, unless `query` says otherwise. */
  static list(opts: SandboxListOptions = {}): SandboxPaginator {
    return new SandboxPaginator(opts);
  }

  /** Removes a sandbox, with its disk; false if there is none. */
  static async kill(name: string): Promise<boolean> {
    try {
      const { id } = await find(name);
      await mica(["rm", "--force", "--", id]);
      return true;
    } catch (error) {
      if (error instanceof NotFoundError) return false;
      throw error;
    }
  }

  /** Its name. */
  get name(): string {
    return this.#owner.name;
  }

  /** Ends it at once, like a power cut; false if it does not run. */
  async kill(): Promise<boolean> {
    return this.#end({ type: "kill" });
  }

  /** Ends it in order, so that its disk has all that was written; false if it does not run. */
  async stop(opts: { graceMs?: number } = {}): Promise<boolean> {
    return this.#end({ type: "stop", grace: whole("graceMs", Math.ceil(opts.graceMs ?? GRACE)) });
  }

  async #end(request: object): Promise<boolean> {
    try {
      await this.#ask(request, "stopped");
      return true;
    } catch (error) {
      if (error instanceof SandboxNotRunningError) return false;
      throw error;
    } finally {
      this.#shared.close();
    }
  }

  /** Ends it at once, as `kill` does: for `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.kill().then(() => undefined);
  }

  /** Whether it runs; true for a paused one. */
  async isRunning(): Promise<boolean> {
    try {
      return (await this.#ask({ type: "info" }, "info"))["ending"] !== true;
    } catch (error) {
      if (error instanceof SandboxNotRunningError) return false;
      throw error;
    }
  }

  /** Its record, as it is now. */
  async getInfo(): Promise<SandboxInfo> {
    return sandboxInfo(await find(this.sandboxId));
  }

  /** Ends it in so many milliseconds from now; 0 or Infinity for never. */
  async setTimeout(timeoutMs: number): Promise<void> {
    const limit = timeLimit("timeoutMs", timeoutMs);
    // The owner measures it: the wall clock may step.
    const millis = whole("timeoutMs", Math.ceil(limit));
    await this.#ask(limit === 0 ? { type: "expire", max_life: 0 } : { type: "end_in", millis }, "expires");
  }

  /** Stops its processors until `resume`. */
  async pause(): Promise<void> {
    await this.#ask({ type: "pause" }, "paused");
  }

  /** Lets it continue. */
  async resume(): Promise<void> {
    await this.#ask({ type: "unpause" }, "unpaused");
  }

  /** Gives it another name. */
  async rename(name: string): Promise<void> {
    await this.#ask({ type: "rename", name }, "renamed");
    this.#owner.name = name;
  }

  /** What it uses of its host. */
  async stats(): Promise<SandboxStats> {
    return sandboxStats(await this.#ask({ type: "stats" }, "stats"));
  }

  /**
   * Address and port on this machine that lead to a TCP port of the sandbox.
   *
   * @throws NotFoundError if the port was not published
   */
  getHost(port: number): string {
    const address = publishedAt(this.#record, port);
    if (address !== undefined) return address;
    const hint = `publish it: Sandbox.create(image, { publish: ["8080:${port}"] })`;
    throw new NotFoundError(`port ${port} is not published`, { kind: "not_found", hint });
  }

  /** Lets it continue without this process, which must have made it. */
  async detach(): Promise<void> {
    const { connection } = await server();
    await connection.ask({ type: "detach", sandbox: this.sandboxId }, "detached");
  }

  /** Makes copies that continue where it is (KVM only). They end with this process. */
  async fork(opts: { count?: number } = {}): Promise<Sandbox[]> {
    const made = await make({ type: "fork", sandbox: this.sandboxId, count: whole("count", opts.count ?? 1, 1, MAX_U32) });
    return made.map((one) => new Sandbox(one));
  }

  /** Copies its disk, with `memory` the whole machine (KVM only), for `mica run --from`. */
  async createSnapshot(opts: { name?: string; memory?: boolean } = {}): Promise<SnapshotInfo> {
    const name = opts.name ?? `${this.name}-${randomBytes(4).toString("hex")}`;
    await mica(["snapshot", "create", ...(opts.memory === true ? ["--memory"] : []), "--", this.sandboxId, name]);
    const found = (await snapshots.list()).find(({ snapshotId }) => snapshotId === name);
    if (found === undefined) throw new NotFoundError(`no snapshot is called \`${name}\``, { kind: "not_found" });
    return found;
  }

  /** Makes an image of its changes; returns the image's digest. */
  async commit(image: string, opts: { message?: string; author?: string; changes?: readonly string[] } = {}): Promise<string> {
    const flags = (opts.changes ?? []).map((one) => `--change=${one}`);
    if (opts.message !== undefined) flags.push(`--message=${opts.message}`);
    if (opts.author !== undefined) flags.push(`--author=${opts.author}`);
    return (await mica(["commit", ...flags, "--", this.sandboxId, image])).toString("utf8").trim();
  }

  /** The paths that it has changed on its disk. */
  async diff(): Promise<Change[]> {
    return (await micaJson<ListedChange[]>(["diff", "--json", "--", this.sandboxId])).map(change);
  }

  #ask(request: object, type: string): Promise<Record<string, unknown>> {
    return askOwner(this.#owner, request, type);
  }
}
