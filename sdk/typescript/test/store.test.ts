import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { CancelledError, images, MicaError, Sandbox, volumes } from "../src/index.js";
import { hostBox, IMAGE, until } from "./support.js";

test("images are listed, named, saved, loaded and removed", async () => {
  const [image] = (await images.list()).filter(({ references }) => references.includes(`docker.io/library/${IMAGE}:latest`));
  assert.deepEqual([image?.layers, image?.platform], [4, "linux/amd64"]);
  await images.tag(IMAGE, "ts-tagged:1");
  const archive: Uint8Array[] = [];
  await images.save("ts-tagged:1", (bytes) => void archive.push(bytes));
  assert.ok(Buffer.concat(archive).length > 10_000_000);
  await images.load(new Blob(archive), { name: "ts-loaded:1" });
  const names = (await images.list()).flatMap(({ references }) => references);
  assert.ok(names.includes("docker.io/library/ts-tagged:1") && names.includes("docker.io/library/ts-loaded:1"));
  await images.remove("ts-tagged:1");
  await images.remove("ts-loaded:1");
  await assert.rejects(images.remove("ts-tagged:1"), (error: unknown) => {
    assert.ok(error instanceof MicaError);
    assert.match(error.message, /ts-tagged/);
    return true;
  });
  await assert.rejects(images.load("no archive"), MicaError);
});

test("images are pushed to a registry and pulled from there", async () => {
  await using registry = await Registry.start();
  const name = `localhost:${registry.port}/pushed:1`;
  await images.push(IMAGE, name);
  const lines: string[] = [];
  await images.pull(name, { onProgress: (line) => void lines.push(line) });
  const names = (await images.list()).flatMap(({ references }) => references);
  assert.ok(names.includes(name), names.join());
  await using box = await Sandbox.create(name, { backend: "host", net: "none" });
  assert.equal((await box.commands.run("id -un")).stdout, "strata\n");
  await assert.rejects(images.pull(`localhost:${registry.port}/none:1`), MicaError);
  await assert.rejects(images.pull(name, { signal: AbortSignal.abort() }), { name: "AbortError" });
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
  await assert.rejects(volumes.create("ts-volume"), MicaError);
  await volumes.remove("ts-volume");
  assert.equal(await one(), undefined);
});

test("many sandboxes are made at once", async () => {
  const boxes = await Promise.all(Array.from({ length: 8 }, () => hostBox()));
  const names = await Promise.all(boxes.map(async (box) => (await box.commands.run("hostname")).stdout.trim()));
  assert.deepEqual(names, boxes.map(({ sandboxId }) => sandboxId.slice(0, 12)));
  await Promise.all(boxes.map((box) => box.kill()));
});

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
    const free = createServer().listen(0, "127.0.0.1");
    await until("a port is free", () => free.address() !== null);
    const { port } = free.address() as { port: number };
    await new Promise((resolve) => free.close(resolve));
    const config = { version: "0.1", log: { level: "error" }, http: { addr: `127.0.0.1:${port}` }, storage: { filesystem: { rootdirectory: directory } } };
    await writeFile(join(directory, "config.yml"), JSON.stringify(config));
    const child = spawn("docker-registry", ["serve", join(directory, "config.yml")], { stdio: "ignore" });
    const registry = new Registry(port, async () => {
      child.kill("SIGKILL");
      await rm(directory, { recursive: true, force: true });
    });
    await until("the registry answers", () =>
      fetch(`http://127.0.0.1:${port}/v2/`).then(
        ({ ok }) => ok,
        () => false,
      ),
    );
    return registry;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#end();
  }
}
