import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { CancelledError, images, InUseError, NameInUseError, Sandbox, SandboxError, volumes, type ImageInfo, type PullProgress } from "../src/index.js";
import { imageArchive } from "./archive.js";
import { hostBox, listed, processes, until } from "./support.js";

test("images are loaded, listed, named, saved and removed", async () => {
  const archive = await imageArchive();
  await images.load(archive, { name: "ts-loaded:1" });
  const one = async (name: string): Promise<ImageInfo | undefined> =>
    (await images.list()).find(({ references }) => references.includes(`docker.io/library/${name}`));
  const loaded = await one("ts-loaded:1");
  assert.deepEqual([loaded?.layers, loaded?.platform], [1, "linux/amd64"]);
  await images.tag("ts-loaded:1", "ts-tagged:1");
  assert.equal((await one("ts-tagged:1"))?.digest, loaded?.digest);
  const saved: Uint8Array[] = [];
  await images.save("ts-tagged:1", (bytes) => void saved.push(bytes));
  const full = new Error("the caller's disk is full");
  await assert.rejects(
    images.save("ts-tagged:1", () => {
      throw full;
    }),
    full,
  );
  const servers = (await processes()).filter(({ parent, args }) => parent === process.pid && args.includes("serve"));
  assert.ok(servers.length > 0);
  const isSaving = async (): Promise<boolean> =>
    (await processes()).some(({ parent, args }) => servers.some(({ pid }) => pid === parent) && args.includes("save"));
  await until("mica saves no more", async () => !(await isSaving()));
  await images.load(new Blob(saved).stream(), { name: "ts-again:1" });
  assert.equal((await one("ts-again:1"))?.layers, 1);
  await using box = await Sandbox.create("ts-again:1", { backend: "host", net: "none" });
  assert.equal(await box.files.read("file"), "in the image");
  await images.remove("ts-tagged:1");
  assert.equal(await one("ts-tagged:1"), undefined);
  await assert.rejects(images.remove("ts-tagged:1"), (error: unknown) => {
    assert.ok(error instanceof SandboxError);
    assert.match(error.message, /ts-tagged/);
    return true;
  });
  await assert.rejects(images.load("no archive"), SandboxError);
  async function* broken(): AsyncGenerator<Uint8Array> {
    yield archive.subarray(0, 100_000);
    throw new Error("the source is gone");
  }
  await assert.rejects(images.load(broken()), /the source is gone/);
});

test("images are pushed to a registry and pulled from there", async () => {
  await using registry = await Registry.start();
  const name = `localhost:${registry.port}/pushed:1`;
  await images.load(await imageArchive(), { name: "ts-pushed:1" });
  await images.push("ts-pushed:1", name);
  await images.remove("ts-pushed:1");
  assert.ok(!(await images.list()).some(({ references }) => references.includes(name)));
  const told: PullProgress[] = [];
  await images.pull(name, { platform: "linux/amd64", onProgress: (progress) => void told.push(progress) });
  assertPull(told);
  assert.ok((await images.list()).some(({ references }) => references.includes(name)));
  // One that is not here is pulled.
  await images.remove(name);
  told.length = 0;
  await using box = await Sandbox.create(name, {
    backend: "host",
    net: "none",
    onProgress: async (progress) => {
      // Sleep: the callback is slow.
      await sleep(1);
      told.push(progress);
    },
  });
  assertPull(told);
  assert.equal((await box.commands.run("cat /file")).stdout, "in the image");
  // What a caller's function throws ends the sandbox that it would not learn of.
  await box.kill();
  await removed(name);
  const before = (await listed()).size;
  const thrown = new Error("the caller's");
  const fail = (): void => {
    throw thrown;
  };
  await assert.rejects(Sandbox.create(name, { backend: "host", net: "none", onProgress: fail }), thrown);
  await until("it is gone", async () => (await listed()).size <= before);
  for (const opts of [{}, { onProgress: (progress: PullProgress) => void told.push(progress) }]) {
    const said: string[] = [];
    const onNotice = (line: string): void => void said.push(line);
    await assert.rejects(images.pull(`localhost:${registry.port}/none:1`, { onNotice, ...opts }), SandboxError);
    assert.match(said.join("\n"), /none/);
  }
  assert.equal(told.at(-1)?.phase, "resolving");
  await assert.rejects(images.pull(name, { signal: AbortSignal.abort() }), CancelledError);
});

test("a pull is cancelled", async () => {
  // It accepts, and says nothing.
  const silent = createServer().listen(0, "127.0.0.1");
  await until("it listens", () => silent.address() !== null);
  const { port } = silent.address() as { port: number };
  let hasConnected = false;
  silent.on("connection", () => (hasConnected = true));
  const controller = new AbortController();
  const pulling = images.pull(`localhost:${port}/silent:1`, { signal: controller.signal });
  await until("it is asked", () => hasConnected);
  controller.abort();
  await assert.rejects(pulling, CancelledError);
  silent.close();
});

test("volumes are made, grown and removed", async () => {
  await volumes.create("ts-volume", { size: "64m" });
  const one = async (): Promise<number | undefined> => (await volumes.list()).find(({ name }) => name === "ts-volume")?.size;
  assert.equal(await one(), 64 << 20);
  await volumes.resize("ts-volume", "128m");
  assert.equal(await one(), 128 << 20);
  await assert.rejects(volumes.create("ts-volume"), NameInUseError);
  await volumes.remove("ts-volume");
  assert.equal(await one(), undefined);
});

test("many sandboxes are made at once", async () => {
  const boxes = await Promise.all(Array.from({ length: 8 }, () => hostBox()));
  const names = await Promise.all(boxes.map(async (box) => (await box.commands.run("hostname")).stdout.trim()));
  assert.deepEqual(names, boxes.map(({ sandboxId }) => sandboxId.slice(0, 12)));
  await Promise.all(boxes.map((box) => box.kill()));
});

/** Removes an image once nothing uses it: its first sandbox may end before its layers are unpacked. */
async function removed(name: string): Promise<void> {
  await until("nothing uses the image", () =>
    images.remove(name).then(
      () => true,
      (error: unknown) => {
        if (error instanceof InUseError) return false;
        throw error;
      },
    ),
  );
}

/** What was told is the pull of an image with one layer. */
function assertPull(told: PullProgress[]): void {
  const phases = told.map(({ phase }) => phase).filter((phase, at, all) => phase !== all[at - 1]);
  assert.deepEqual(phases, ["resolving", "pulling", "merging", "done"]);
  const { done, total, layers } = told.at(-1) ?? assert.fail();
  assert.deepEqual([layers.length, done, layers[0]?.done, layers[0]?.total], [1, total, total, total]);
  assert.ok(total > 0);
  assert.match(layers[0]?.digest ?? "", /^sha256:[0-9a-f]{64}$/);
  assert.match(layers[0]?.phase ?? "", /^(done|present)$/);
}

/** Debian's docker-registry on a port of its own. */
class Registry implements AsyncDisposable {
  readonly port: number;
  readonly #end: () => Promise<void>;

  constructor(port: number, end: () => Promise<void>) {
    this.port = port;
    this.#end = end;
  }

  static async start(): Promise<Registry> {
    const directory = await mkdtemp(join(tmpdir(), "registry-"));
    const log = { level: "info", accesslog: { disabled: true } };
    const config = { version: "0.1", log, http: { addr: "127.0.0.1:0" }, storage: { filesystem: { rootdirectory: directory } } };
    await writeFile(join(directory, "config.yml"), JSON.stringify(config));
    const child = spawn("docker-registry", ["serve", join(directory, "config.yml")], { stdio: ["ignore", "ignore", "pipe"] });
    let said = "";
    child.stderr.on("data", (bytes: Buffer) => void (said += bytes.toString()));
    const port = (): number => Number(/listening on [\d.]+:(\d+)/.exec(said)?.[1]);
    await until("the registry listens", () => port() > 0);
    return new Registry(port(), async () => {
      child.kill("SIGKILL");
      await rm(directory, { recursive: true, force: true });
    });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#end();
  }
}
