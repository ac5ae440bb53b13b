/** Wrong input, and ends at bad moments: the table that all SDKs share, sdk/cases.json. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { readdir, readFile } from "node:fs/promises";
import { createServer, type AddressInfo, type Server, type Socket } from "node:net";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import * as micabox from "../src/index.js";
import { images, Sandbox, SandboxError, type SandboxOptions } from "../src/index.js";
import { hostBox, IMAGE, listed, processes, until } from "./support.js";

interface Case {
  name: string;
  do: string;
  error: string;
  kind?: string;
  reason?: string;
  before?: string;
  during?: string;
  image?: string | null;
  options?: SandboxOptions;
  sandbox?: string;
  cmd?: string | string[];
  user?: string;
  cwd?: string;
  seconds?: number;
  pid?: number;
  path?: string;
  data?: string | { endless: true };
  port?: number;
  count?: number;
}

const OPTIONS: SandboxOptions = { tmpfs: ["/small:size=64k"] };
const table = await readFile(new URL("../../../cases.json", import.meta.url), "utf8");
const { cases } = JSON.parse(table) as { cases: Case[] };

let box: Sandbox;
before(async () => {
  box = await hostBox(OPTIONS);
});
after(() => box.kill());

test("the table has cases", () => assert.ok(cases.length > 20));

for (const one of cases) {
  test(`wrong input: ${one.name}`, async () => {
    const own = one.before !== undefined || one.during !== undefined ? await hostBox(OPTIONS) : box;
    await using silent = await Silent.listen();
    const told = whole(one, silent) as Case;
    const canceller = new AbortController();
    try {
      if (one.before !== undefined) {
        await happen(one.before, own, told, canceller);
        // Until then it may be about to end.
        await until("it has ended", async () => (await listed()).get(own.sandboxId) === undefined);
      }
      const before = one.during === "cancelled" ? await left(silent) : [];
      const happening = one.during === undefined ? undefined : happenSoon(one.during, own, told, silent, canceller);
      await assert.rejects(perform(told, own, canceller.signal), (error: unknown) => {
        const expected = (micabox as unknown as Record<string, typeof SandboxError>)[`${one.error}Error`];
        assert.ok(expected !== undefined && error instanceof expected, String(error));
        if (one.kind !== undefined) assert.equal(error.kind, one.kind);
        if (one.reason !== undefined) assert.equal((error as micabox.CommandStartError).reason, one.reason);
        return true;
      });
      await happening;
      if (one.during === "cancelled") {
        let now: number[] = [];
        const isNoMore = async (): Promise<boolean> => (now = await left(silent)).every((count, at) => count <= (before[at] ?? 0));
        await until("nothing is left", isNoMore).catch(() => assert.deepEqual(now, before));
        if (one.do === "run") await until("it is gone", async () => (await pids(own, told)).length === 0);
        assert.equal((await own.commands.run("echo on")).stdout, "on\n");
      }
    } finally {
      if (own !== box) await own.kill();
      // All of this process's sandboxes have ended with it.
      if ([one.before, one.during].includes("helper_killed")) {
        await until("the others have ended", async () => !(await box.isRunning()));
        box = await hostBox(OPTIONS);
      }
    }
  });
}

async function perform(one: Case, box: Sandbox, signal: AbortSignal): Promise<unknown> {
  const { image = IMAGE, path = "", data = "" } = one;
  const limits = {
    ...(one.user === undefined ? {} : { user: one.user }),
    ...(one.cwd === undefined ? {} : { cwd: one.cwd }),
    ...(one.seconds === undefined ? {} : { timeoutMs: one.seconds * 1000 }),
  };
  switch (one.do) {
    case "create": {
      const options: SandboxOptions = { backend: "host", net: "none", signal, ...one.options };
      return image === null ? Sandbox.create(options) : Sandbox.create(image, options);
    }
    case "connect":
      return Sandbox.connect(one.sandbox ?? "");
    case "pull":
      return images.pull(image ?? "", { signal });
    case "run":
      return box.commands.run(one.cmd ?? "", { ...limits, signal });
    case "attach":
      return box.commands.connect(one.pid ?? 0);
    case "take_stdin": {
      const handle = await box.commands.run(one.cmd ?? "", { background: true, stdin: true });
      const other = await Sandbox.connect(box.name);
      try {
        return await (await other.commands.connect(handle.pid)).sendStdin("x");
      } finally {
        await handle.kill();
      }
    }
    case "read":
      return box.files.read(path);
    case "write":
      return box.files.write(path, typeof data === "string" ? data : endless(), { signal });
    case "host":
      return box.getHost(one.port ?? 0);
    case "fork":
      return box.fork({ count: one.count ?? 1 });
    default:
      throw new Error(one.do);
  }
}

async function* endless(): AsyncGenerator<Uint8Array> {
  for (;;) {
    yield new Uint8Array(1000);
    // Sleep: the caller's data comes slowly.
    await sleep(1);
  }
}

/** Does what the table says to, once the operation is under way. */
async function happenSoon(what: string, box: Sandbox, one: Case, silent: Silent, canceller: AbortController): Promise<void> {
  await until("it is under way", async () => {
    if (one.do === "run") return (await pids(box, one)).length > 0;
    if (one.do === "write") return box.files.exists(one.path ?? "");
    return silent.connections > 0;
  });
  await happen(what, box, one, canceller);
}

async function happen(what: string, box: Sandbox, one: Case, canceller: AbortController): Promise<void> {
  switch (what) {
    case "killed":
      await box.kill();
      return;
    case "killed_by_another":
      await (await Sandbox.connect(box.name)).kill();
      return;
    case "command_killed_by_another":
      await (await Sandbox.connect(box.name)).commands.kill((await pids(box, one))[0] ?? 0);
      return;
    case "helper_killed":
      const pid = await helper();
      process.kill(pid, "SIGKILL");
      await until("it has ended", async () => !(await processes()).some((one) => one.pid === pid && one.args.includes("serve")));
      return;
    case "cancelled":
      canceller.abort(new Error("enough"));
      return;
    default:
      throw new Error(what);
  }
}

/** The processes of the case's command in its sandbox. */
async function pids(box: Sandbox, { cmd }: Case): Promise<number[]> {
  const shown = String(cmd).replace(/^exec /, "");
  return (await box.commands.list()).filter((one) => one.cmd === shown).map(({ pid }) => pid);
}

/** The process ID of this process's `mica serve`. */
async function helper(): Promise<number> {
  const found = (await processes()).find(({ parent, args }) => parent === process.pid && args.includes("serve"));
  return found?.pid ?? assert.fail("no `mica serve` is a child of this process");
}

/** What `mica serve` has for this process: owners of sandboxes, commands, threads, descriptors; and this one's own. Some of it may be about to go. */
async function left(silent: Silent): Promise<number[]> {
  const pid = await helper();
  const children = (await processes()).filter(({ parent }) => parent === pid).length;
  const count = async (path: string): Promise<number> => (await readdir(path)).length;
  const descriptors = (await count("/proc/self/fd")) - silent.connections;
  return [children, await count(`/proc/${pid}/task`), await count(`/proc/${pid}/fd`), descriptors];
}

/** A registry that accepts, and says nothing. */
class Silent implements AsyncDisposable {
  readonly #server: Server;
  readonly #sockets: Socket[] = [];

  private constructor(server: Server) {
    this.#server = server;
    server.on("connection", (socket) => this.#sockets.push(socket));
  }

  static async listen(): Promise<Silent> {
    const server = createServer().listen(0, "127.0.0.1");
    await once(server, "listening");
    return new Silent(server);
  }

  /** How many were accepted, and are open. */
  get connections(): number {
    return this.#sockets.filter((socket) => !socket.destroyed).length;
  }

  get image(): string {
    return `localhost:${(this.#server.address() as AddressInfo).port}/x`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    this.#server.close();
  }
}

/** A value of the table, with what stands for another one replaced. */
function whole(value: unknown, silent: Silent): unknown {
  if (Array.isArray(value)) return value.map((one) => whole(one, silent));
  if (typeof value !== "object" || value === null) return value;
  const { repeat, of, silent: isSilent } = value as { repeat?: [string, number]; of?: string; silent?: true };
  if (repeat !== undefined) return repeat[0].repeat(repeat[1]);
  if (of !== undefined) return box.name;
  if (isSilent === true) return silent.image;
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, whole(one, silent)]));
}
