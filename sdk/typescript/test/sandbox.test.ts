import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { CancelledError, InvalidArgumentError, NameInUseError, NotFoundError, Sandbox, SandboxNotFoundError } from "../src/index.js";
import { SandboxError, SandboxNotRunningError, TimeoutError, UnsupportedError } from "../src/index.js";
import { hostBox, IMAGE, listed, micaSays, PATIENCE, until } from "./support.js";

test("a sandbox is made, found and killed", async () => {
  const box = await hostBox({ name: "ts-made", metadata: { for: "tests", by: "ts" } });
  assert.equal((await listed()).get(box.sandboxId), "running");
  const info = await box.getInfo();
  assert.deepEqual(
    [info.name, info.metadata, info.state, info.image],
    ["ts-made", { for: "tests", by: "ts" }, "running", `docker.io/library/${IMAGE}:latest`],
  );
  assert.ok(Math.abs(Date.now() - info.startedAt.getTime()) < PATIENCE);
  assert.equal(await box.isRunning(), true);
  const ids = [];
  for await (const { sandboxId } of Sandbox.list({ query: { metadata: { by: "ts" } } })) ids.push(sandboxId);
  assert.deepEqual(ids, [box.sandboxId]);
  const none = Sandbox.list({ query: { metadata: { by: "others" } } });
  assert.deepEqual([none.hasNext, await none.nextItems(), none.hasNext], [true, [], false]);
  await assert.rejects(none.nextItems(), SandboxError);
  assert.equal(await box.kill(), true);
  assert.equal(await box.kill(), false);
  assert.equal(await box.isRunning(), false);
  assert.equal((await listed()).has(box.sandboxId), false);
  await assert.rejects(box.commands.run("true"), SandboxNotRunningError);
  await assert.rejects(box.files.read("/etc/passwd"), SandboxNotRunningError);
  await assert.rejects(box.getInfo(), SandboxNotFoundError);
});

test("a sandbox ends with its block", async () => {
  let id: string;
  {
    await using box = await hostBox();
    id = box.sandboxId;
    assert.equal((await listed()).get(id), "running");
  }
  assert.equal((await listed()).has(id), false);
});

test("requests that can't be met fail by kind", async () => {
  await using box = await hostBox({ name: "ts-name" });
  await assert.rejects(hostBox({ name: "ts-name" }), NameInUseError);
  await assert.rejects(hostBox({ memory: "lots" }), InvalidArgumentError);
  await assert.rejects(hostBox({ noSuchOption: true }), /unknown option `no-such-option`/);
  for (const timeoutMs of [Number.NaN, -1, 1e300]) await assert.rejects(hostBox({ timeoutMs }), InvalidArgumentError);
  for (const envs of [{ A: "a\0b" }, { "": "x" }, { "A=B": "x" }]) await assert.rejects(hostBox({ envs }), InvalidArgumentError);
  for (const metadata of [{ "a=b": "x" }, { "": "x" }]) await assert.rejects(hostBox({ metadata }), InvalidArgumentError);
  await assert.rejects(hostBox({ name: "half-\ud800" }), { name: "InvalidArgumentError", kind: "invalid" });
  await assert.rejects(Sandbox.create("none", { pull: "never" }), NotFoundError);
  await assert.rejects(Sandbox.connect("ts-none"), SandboxNotFoundError);
  await assert.rejects(Sandbox.connect(""), SandboxNotFoundError);
  assert.equal(await Sandbox.kill("ts-none"), false);
  await assert.rejects(hostBox({ upper: "disk" }), UnsupportedError);
  // A container has no machine that could be copied.
  await assert.rejects(box.fork({ count: 2 }), (error: unknown) => error instanceof SandboxError && error.message !== "");
  await assert.rejects(box.diff(), { name: "UnsupportedError", hint: /without `--backend host`/ });
});

test("another client connects by name or ID", async () => {
  const box = await hostBox({ name: "ts-shared" });
  const other = await Sandbox.connect("ts-shared");
  await other.files.write("/tmp/from-other", "1");
  assert.equal(await box.files.read("/tmp/from-other"), "1");
  await other.rename("ts-renamed");
  assert.equal((await box.getInfo()).name, "ts-renamed");
  assert.equal((await Sandbox.connect(box.sandboxId.slice(0, 12))).name, "ts-renamed");
  assert.equal(await Sandbox.kill("ts-renamed"), true);
  assert.equal(await box.isRunning(), false);
});

test("a paused sandbox stands still until it is resumed", async () => {
  await using box = await hostBox();
  const handle = await box.commands.run("while :; do echo tick; sleep 0.01; done", { background: true });
  await until("it ticks", () => handle.stdout.length > 20);
  await box.pause();
  assert.equal((await box.getInfo()).state, "paused");
  await assert.rejects(box.commands.run("true"), SandboxNotRunningError);
  let length = 0;
  await until("no more comes than was on its way", async () => {
    length = handle.stdout.length;
    // Sleep: nothing may come meanwhile.
    await sleep(200);
    return handle.stdout.length === length;
  });
  // As with E2B, one that is connected to continues.
  const again = await Sandbox.connect(box.sandboxId);
  await until("it ticks again", () => handle.stdout.length > length);
  await again.pause();
  assert.equal(await again.connect(), again);
  assert.equal((await box.commands.run("echo up")).stdout, "up\n");
});

test("a paused sandbox holds up neither an abort nor a time limit", async () => {
  await using box = await hostBox();
  const canceller = new AbortController();
  const cancelled = await box.commands.run(["sleep", "987"], { background: true, signal: canceller.signal });
  const late = await box.commands.run(["sleep", "986"], { background: true, timeoutMs: 100 });
  const ends = [assert.rejects(cancelled.wait(), CancelledError), assert.rejects(late.wait(), TimeoutError)];
  await box.pause();
  canceller.abort();
  await Promise.all(ends);
  await box.resume();
  await until("they are gone", async () => !(await box.commands.list()).some(({ cmd }) => cmd.startsWith("sleep")));
});

test("a sandbox ends when its time is over", async () => {
  const box = await hostBox();
  for (const wrong of [Number.NaN, -1, 1e300]) await assert.rejects(box.setTimeout(wrong), InvalidArgumentError);
  await box.setTimeout(Infinity);
  await box.setTimeout(60_000);
  await box.setTimeout(300);
  await until("it has ended", async () => !(await box.isRunning()));
  const idle = await hostBox({ idleTimeoutMs: 500 });
  await idle.detach();
  await until("the idle one has ended", async () => !(await listed()).has(idle.sandboxId));
  const limited = await hostBox({ timeoutMs: 600_000 });
  await limited.setTimeout(0);
  assert.equal(await limited.isRunning(), true);
  await limited.kill();
});

test("what a sandbox uses is measured", async () => {
  await using box = await hostBox({ net: "user" });
  const { ownMemory, networkReceived } = await box.stats();
  assert.ok((ownMemory === undefined || ownMemory > 100_000) && networkReceived !== undefined);
});

test("a published port leads in", async () => {
  // On a port that is free.
  await using box = await hostBox({ net: "user", publish: ["0:80"] });
  assert.match(box.getHost(80), /^127\.0\.0\.1:[1-9]\d*$/);
  assert.throws(() => box.getHost(81), NotFoundError);
  await box.files.write("/srv/www/index.html", "served");
  await box.commands.run("exec python3 -m http.server 80 -d /srv/www", { background: true });
  let page = "";
  await until("it is served", async () => {
    page = await fetch(`http://${box.getHost(80)}/`).then(
      (response) => response.text(),
      () => "",
    );
    return page !== "";
  });
  assert.equal(page, "served");
});

test("a sandbox without a network reaches nothing", async () => {
  await using box = await Sandbox.create(IMAGE, { backend: "host", user: "root", allowInternetAccess: false });
  const { stdout } = await box.commands.run("cat /proc/net/dev | tail -n +3 | cut -d: -f1");
  assert.equal(stdout.trim(), "lo");
});

test("a detached command outlives its handle's process, as its sandbox does", async () => {
  const box = await hostBox();
  await box.detach();
  await assert.rejects(box.detach(), NotFoundError);
  assert.equal((await box.commands.run("echo detached")).stdout, "detached\n");
  await micaSays("rm", "--force", box.sandboxId);
  assert.equal(await box.isRunning(), false);
});
