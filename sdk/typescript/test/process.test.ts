/** What becomes of sandboxes, and of this process, at the end of the other one. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { DisconnectedError, HostError, Sandbox, SandboxError } from "../src/index.js";
import { imageArchive } from "./archive.js";
import { hostBox, IMAGE, listed, micaSays, PATIENCE, processes, until } from "./support.js";

const INDEX = new URL("../src/index.js", import.meta.url).href;

interface Ended {
  stdout: string;
  /** Null if a signal ended it. */
  code: number | null;
  ms: number;
}

/** Runs a module that has `Sandbox` and `made`, by whatever runs this one; its stdout, and how it ended. */
async function script(body: string, env: Record<string, string> = {}): Promise<Ended> {
  const directory = await mkdtemp(join(tmpdir(), "script-"));
  try {
    const path = join(directory, "script.mjs");
    const head = `import { Sandbox, images } from ${JSON.stringify(INDEX)};
      const made = { backend: "host", net: "none", user: "root" };`;
    await writeFile(path, `${head}\n${body}`);
    const run = "Deno" in globalThis ? ["run", "--allow-all", path] : [path];
    const started = performance.now();
    const child = spawn(process.execPath, run, { stdio: ["ignore", "pipe", "inherit"], env: { ...process.env, ...env } });
    let stdout = "";
    child.stdout.on("data", (bytes: Buffer) => void (stdout += bytes.toString()));
    const [code] = (await once(child, "close")) as [number | null];
    return { stdout, code, ms: performance.now() - started };
  } finally {
    await rm(directory, { recursive: true });
  }
}

test("a process ends when it is done, and its sandboxes with it", async () => {
  const done = await script(`
    const box = await Sandbox.create("${IMAGE}", made);
    await box.commands.run("sleep 1000", { background: true }).then((handle) => handle.disconnect());
    console.log(box.sandboxId);`);
  assert.deepEqual([done.code, /^[0-9a-f]{32}\n$/.test(done.stdout)], [0, true]);
  assert.ok(done.ms < PATIENCE, `${done.ms} ms`);
  await until("its sandbox is gone", async () => !(await listed()).has(done.stdout.trim()));
});

test("a process ends when it is done, whatever it has left in the background", async () => {
  const done = await script(`
    const box = await Sandbox.create("${IMAGE}", made);
    const kept = [];
    kept.push(await box.commands.run("echo begun; exec sleep 1000", { background: true, onStdout: () => undefined }));
    kept.push(await box.commands.run("exec cat", { background: true, stdin: true }));
    kept.push(await box.commands.connect(kept[0].pid), kept[1].readable("stdout"));
    kept.push(await box.files.watchDir("/tmp", () => undefined));
    kept.push(await box.files.read("/dev/zero", { format: "stream" }));
    kept.push(await box.pty.create({ rows: 24, cols: 80, onData: () => undefined }));
    // What is awaited keeps it alive: a command, its end, its output, a file.
    for await (const { data } of await box.commands.run("sleep 0.2; echo one", { background: true })) console.log(data.length);
    const later = await box.commands.run("sleep 0.2; echo two", { background: true });
    console.log((await later.wait()).stdout.trim(), (await box.commands.run("sleep 0.2; echo three")).stdout.trim());
    const { value } = await (await box.files.read("/dev/zero", { format: "stream" })).getReader().read();
    console.log(value[0], box.sandboxId);`);
  const lines = done.stdout.trim().split("\n");
  assert.deepEqual([done.code, lines.slice(0, 2)], [0, ["4", "two three"]]);
  const [first, id = ""] = lines.at(2)?.split(" ") ?? [];
  assert.equal(first, "0");
  await until("its sandbox is gone", async () => !(await listed()).has(id));
});

test("a process that is killed takes its sandboxes with it, but not those that it detached", async () => {
  const killed = await script(`
    const [one, other] = await Promise.all([1, 2].map(() => Sandbox.create("${IMAGE}", made)));
    await other.detach();
    await other.commands.run("sleep 1000", { background: true, detach: true });
    console.log(one.sandboxId, other.sandboxId);
    process.kill(process.pid, "SIGKILL");`);
  assert.equal(killed.code, null);
  const [one = "", other = ""] = killed.stdout.trim().split(" ");
  await until("its sandbox is gone", async () => !(await listed()).has(one));
  const left = await Sandbox.connect(other);
  await until("its command goes on", async () => (await left.commands.list()).some(({ cmd }) => cmd === "sleep 1000"));
  assert.equal(await left.kill(), true);
});

test("a killed mica ends its sandboxes, and what waits for them; the next one is made anew", async () => {
  const box = await hostBox();
  const handle = await box.commands.run("sleep 1000", { background: true });
  process.kill(await server(), "SIGKILL");
  await assert.rejects(handle.wait(), DisconnectedError);
  await until("its sandbox is gone", async () => !(await listed()).has(box.sandboxId));
  await using next = await hostBox();
  assert.equal((await next.commands.run("echo up")).stdout, "up\n");
});

test("a sandbox that ends under a command is its error", async () => {
  const box = await hostBox();
  const handle = await box.commands.run("sleep 1000", { background: true });
  const reading = box.files.read("/dev/zero", { format: "stream" });
  const reader = (await reading).getReader();
  await reader.read();
  await micaSays("rm", "--force", box.sandboxId);
  // Killed before or after its connection has ended.
  await assert.rejects(handle.wait(), SandboxError);
  await assert.rejects(async () => {
    while (!(await reader.read()).done);
  }, SandboxError);
});

test("a store with a long path has sandboxes", async () => {
  const directory = await mkdtemp(join(tmpdir(), "long-"));
  try {
    const archive = join(directory, "image.tar");
    await writeFile(archive, await imageArchive());
    const { stdout, code } = await script(
      `import { createReadStream } from "node:fs";
      await images.load(createReadStream("${archive}"), { name: "small" });
      const box = await Sandbox.create("small", { ...made, user: "0" });
      console.log((await box.commands.run("cat /file")).stdout);
      await box.kill();`,
      { MICABOX_HOME: join(directory, "x".repeat(120), "home") },
    );
    assert.deepEqual([stdout, code], ["in the image\n", 0]);
  } finally {
    await rm(directory, { recursive: true });
  }
});

test("a sandbox is given up while mica says nothing", async () => {
  const directory = await mkdtemp(join(tmpdir(), "silent-"));
  try {
    const silent = join(directory, "mica");
    await writeFile(silent, "#!/bin/sh\nexec sleep 10\n", { mode: 0o755 });
    const { stdout } = await script(
      `await Sandbox.create("x", { ...made, signal: AbortSignal.timeout(100) }).catch((error) => console.log(error.name));
      process.exit();`,
      { MICABOX_MICA: silent },
    );
    assert.equal(stdout, "CancelledError\n");
  } finally {
    await rm(directory, { recursive: true });
  }
});

test("a program that is not mica is named", async () => {
  const { stdout } = await script(
    `await images.list().catch((error) => console.log(error.name, error.message));
    process.env.MICABOX_MICA = "/bin/echo";
    await images.list().catch((error) => console.log(error.name, error.message));`,
    { MICABOX_MICA: "/proc/none/mica" },
  );
  const [missing, other] = stdout.split("\n").filter((line) => line.includes("Error"));
  assert.match(missing ?? "", /^HostError cannot start `\/proc\/none\/mica`: .*ENOENT/);
  assert.match(other ?? "", /^ProtocolError the other side does not speak|^DisconnectedError the connection to mica/);
  assert.equal(HostError.name, "HostError");
});

/** The process ID of this process's `mica serve`. */
async function server(): Promise<number> {
  const found = (await processes()).find(({ parent, args }) => parent === process.pid && args.includes("serve"));
  return found?.pid ?? assert.fail("no `mica serve` is a child of this process");
}
