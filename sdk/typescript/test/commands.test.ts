import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { CancelledError, CommandExitError, CommandStartError, DisconnectedError } from "../src/index.js";
import { InvalidArgumentError, NotFoundError, Sandbox, TimeoutError } from "../src/index.js";
import type { CommandHandle, CommandStartOptions, Output, ProcessInfo } from "../src/index.js";
import { hostBox, noise, until } from "./support.js";

let box: Sandbox;
before(async () => {
  box = await hostBox({ envs: { FROM_BOX: "yes", constructor: "of the box" } });
});
after(() => box.kill());

test("a command has its output, its environment and its place", async () => {
  const script = 'echo "$FROM_BOX $LANG $A"; pwd; id -u; echo err >&2';
  await box.files.makeDir("data/new");
  const { exitCode, stdout, stderr } = await box.commands.run(script, { envs: { A: "b", LANG: "C" }, cwd: "data/new" });
  assert.deepEqual({ exitCode, stdout, stderr }, { exitCode: 0, stdout: "yes C b\n/app/data/new\n0\n", stderr: "err\n" });
  assert.equal((await box.commands.run("id -un", { user: "strata" })).stdout, "strata\n");
  assert.equal((await box.commands.run(["printf", "%s|", "a b", "$HOME"])).stdout, "a b|$HOME|");
});

test("an exit code other than 0 is an error, with the output", async () => {
  await assert.rejects(box.commands.run("echo out; echo why >&2; exit 7"), (error: unknown) => {
    assert.ok(error instanceof CommandExitError);
    assert.deepEqual([error.exitCode, error.stdout, error.stderr], [7, "out\n", "why\n"]);
    return true;
  });
  await assert.rejects(box.commands.run("kill -TERM $$"), { name: "CommandExitError", exitCode: 143 });
});

test("a command that can't start says why", async () => {
  const failed = { name: "CommandStartError", reason: "not_found" };
  await assert.rejects(box.commands.run(["no-such-program"]), failed);
  await assert.rejects(box.commands.run("true", { user: "nobody-here" }), { reason: "no_such_user" });
  await assert.rejects(box.commands.run(["/etc/passwd"]), CommandStartError);
  await assert.rejects(box.commands.run("true", { timeoutMs: -1 }), InvalidArgumentError);
  await assert.rejects(box.commands.run("echo \ud800"), InvalidArgumentError);
});

test("100 MB pass through a command", async () => {
  const piece = noise(10 << 20);
  const sent = createHash("sha256");
  async function* source(): AsyncGenerator<Uint8Array> {
    for (let count = 0; count < 10; count += 1) {
      sent.update(piece);
      yield piece;
    }
  }
  const received = createHash("sha256");
  const handle = await box.commands.run("cat", {
    background: true,
    capture: false,
    stdin: source(),
    onOutput: ({ data }) => void received.update(data),
  });
  assert.deepEqual(await handle.wait(), { exitCode: 0, stdout: "", stderr: "" });
  assert.equal(received.digest("hex"), sent.digest("hex"));
});

test("what is not read holds its command back, and nothing else", async () => {
  const handle = await box.commands.run("seq 1000000; echo done >&2", { background: true, capture: false });
  assert.equal((await box.commands.run("echo beside")).stdout, "beside\n");
  assert.equal(handle.exitCode, undefined);
  let text = "";
  for await (const { stream, data } of handle) if (stream === "stdout") text += Buffer.from(data).toString();
  assert.equal(text.length, 6_888_896);
  assert.ok(text.endsWith("\n1000000\n"));
  assert.equal((await handle.wait()).exitCode, 0);
});

test("callbacks get the output as it comes, and hold the next one back", async () => {
  const seen: string[] = [];
  await box.commands.run("echo \u{1f980}; echo b >&2", {
    onStdout: async (text) => {
      // Sleep: the callback is slow.
      await new Promise((resolve) => setTimeout(resolve, 20));
      seen.push(`out ${text}`);
    },
    onStderr: (text) => void seen.push(`err ${text}`),
  });
  assert.deepEqual(seen.sort(), ["err b\n", "out \u{1f980}\n"]);
  const mistake = new Error("the caller's");
  const fails = box.commands.run("yes", {
    onStdout: () => {
      throw mistake;
    },
  });
  await assert.rejects(fails, mistake);
  await assert.rejects(box.commands.run("yes", { onStdout: () => Promise.reject() }), (reason) => reason === undefined);
});

test("stdin is written and ended", async () => {
  const { stdout } = await box.commands.run("cat", { stdin: "whole" });
  assert.equal(stdout, "whole");
  assert.equal((await box.commands.run("cat")).stdout, "");
  const blob = new Blob(["a", new Uint8Array([98])]);
  assert.equal((await box.commands.run("cat", { stdin: blob })).stdout, "ab");
  const handle = await box.commands.run("read a; echo got $a; cat", { background: true, stdin: true });
  await handle.sendStdin("line\n");
  await until("the line is answered", () => handle.stdout === "got line\n");
  await box.commands.sendStdin(handle.pid, "rest");
  await box.commands.closeStdin(handle.pid);
  assert.equal((await handle.wait()).stdout, "got line\nrest");
  await assert.rejects(handle.sendStdin("late"), NotFoundError);
  async function* broken(): AsyncGenerator<Uint8Array> {
    yield Buffer.from("half");
    throw new Error("the source is gone");
  }
  await assert.rejects(box.commands.run("cat", { stdin: broken() }), /the source is gone/);
  // A command that does not read it all is no failure of the writer's.
  assert.equal((await box.commands.run("head -c 1", { stdin: noise(4 << 20), capture: false })).exitCode, 0);
});

test("a reader that stops holds output back, and not the end", async () => {
  const start = (cmd: string, opts: CommandStartOptions = {}): Promise<CommandHandle> => box.commands.run(cmd, { ...opts, background: true });
  // Neither at the end of a command whose output fits into the window,
  const short = await start("echo first; sleep 0.05; seq 20000; echo err >&2");
  await short[Symbol.asyncIterator]().next();
  const { stdout, stderr } = await short.wait();
  assert.deepEqual([stdout.length, stderr], [108_900, "err\n"]);
  assert.equal((await (await start("echo unread", { capture: false })).wait()).exitCode, 0);
  // nor after a kill, whatever it has to write;
  const unread = async (handle: CommandHandle): Promise<CommandHandle> => {
    await handle[Symbol.asyncIterator]().next();
    handle.readable("stderr");
    await handle.readable("stdout").getReader().read();
    return handle;
  };
  const killed = await unread(await start("yes"));
  assert.equal(await killed.kill(), true);
  await assert.rejects(killed.wait(), { exitCode: 137 });
  // Its time may be over before it has written.
  await assert.rejects(async () => (await unread(await start("yes", { timeoutMs: 200 }))).wait(), TimeoutError);
  const canceller = new AbortController();
  const cancelled = (await unread(await start("yes", { signal: canceller.signal }))).wait();
  canceller.abort();
  await assert.rejects(cancelled, CancelledError);
  // nor after the handle has gone, for another one.
  const left = await unread(await start("yes | head -c 1000000"));
  const other = await box.commands.connect(left.pid);
  await left.disconnect();
  assert.equal((await other.wait()).exitCode, 0);
});

test("a callback that never settles does not hold up the end of what is killed", async () => {
  const stuck = { background: true, onStdout: () => new Promise<void>(() => undefined) } as const;
  const killed = await box.commands.run("yes", stuck);
  await until("it has written", () => killed.stdout.length > 100_000);
  await killed.kill();
  await assert.rejects(killed.wait(), { exitCode: 137 });
  await assert.rejects((await box.commands.run("yes", { ...stuck, timeoutMs: 100 })).wait(), TimeoutError);
  const canceller = new AbortController();
  const cancelled = await box.commands.run("yes", { ...stuck, signal: canceller.signal });
  await until("it has written", () => cancelled.stdout.length > 0);
  canceller.abort();
  await assert.rejects(cancelled.wait(), CancelledError);
  // Of one that has ended, `wait` waits for its callbacks until it is told not to.
  const ended = await box.commands.run("echo", stuck);
  await until("it has ended", () => ended.exitCode === 0);
  const waiting = ended.wait();
  // Sleep: it may not end meanwhile.
  assert.equal(await Promise.race([waiting, sleep(50, "waits")]), "waits");
  assert.equal(await ended.kill(), false);
  assert.equal((await waiting).stdout, "\n");
});

test("commands end with their sandbox, even if their output is unread", async () => {
  const own = await hostBox();
  const stuck = await own.commands.run("yes", { background: true, stdin: true, onStdout: () => new Promise<void>(() => undefined) });
  const unread = await own.commands.run("yes", { background: true, capture: false });
  await unread[Symbol.asyncIterator]().next();
  const ends = [stuck, unread].map((handle) => assert.rejects(handle.wait(), DisconnectedError));
  await own.kill();
  await Promise.all(ends);
  assert.equal(await stuck.kill(), false);
  await assert.rejects(stuck.sendStdin("x"), DisconnectedError);
});

test("stdin that was not asked for is refused", async () => {
  for (const stdin of [false, "data"]) {
    const handle = await box.commands.run("sleep 1000", { background: true, stdin });
    await assert.rejects(handle.sendStdin("x"), InvalidArgumentError);
    await assert.rejects(box.commands.sendStdin(handle.pid, "x"), InvalidArgumentError);
    await assert.rejects(handle.closeStdin(), InvalidArgumentError);
    await handle.kill();
  }
  await assert.rejects(box.commands.run("touch /tmp/started", { stdin: 7 as unknown as string }), InvalidArgumentError);
  assert.equal(await box.files.exists("/tmp/started"), false);
});

test("an abort after the end changes nothing", async () => {
  const canceller = new AbortController();
  const handle = await box.commands.run("echo done", { background: true, signal: canceller.signal });
  await until("it has ended", () => handle.exitCode === 0);
  canceller.abort();
  assert.equal((await handle.wait()).stdout, "done\n");
  const other = new AbortController();
  const waits = "while [ ! -e /tmp/go-on ]; do sleep 0.02; done; echo on";
  const left = await box.commands.run(waits, { background: true, signal: other.signal });
  const again = await box.commands.connect(left.pid);
  await left.disconnect();
  other.abort();
  await box.files.write("/tmp/go-on", "");
  assert.equal((await again.wait()).stdout, "on\n");
});

test("both streams are read one after the other, or by several at once", async () => {
  const handle = await box.commands.run("seq 20000 >&2; seq 20000", { background: true, capture: false });
  const [stdout, stderr] = [handle.readable("stdout"), handle.readable("stderr")];
  assert.equal((await new Response(stdout).text()).length, 108_894);
  assert.equal((await new Response(stderr).text()).length, 108_894);
  const slow = await box.commands.run("echo a; read x; echo b", { background: true, capture: false, stdin: true });
  const outputs = slow[Symbol.asyncIterator]();
  const nexts = [outputs.next(), outputs.next(), outputs.next()];
  await nexts[0];
  await slow.sendStdin("\n");
  assert.deepEqual(
    (await Promise.all(nexts)).map(({ value }) => value && Buffer.from(value.data).toString()),
    ["a\n", "b\n", undefined],
  );
});

test("text has all that was written", async () => {
  const seen: string[] = [];
  let pieces = 0;
  const script = "printf '\\357\\273\\277a\\342'; read x; printf '\\202'; read x; printf '\\254\\342'";
  const handle = await box.commands.run(script, {
    background: true,
    stdin: true,
    onStdout: (text) => void seen.push(text),
    onOutput: () => void (pieces += 1),
  });
  for (const piece of [1, 2]) {
    await until(`piece ${piece} has come`, () => pieces === piece);
    await handle.sendStdin("\n");
  }
  const { stdout } = await handle.wait();
  assert.deepEqual([stdout, seen], ["\ufeffa\u20ac\ufffd", ["\ufeffa", "\u20ac", "\ufffd"]]);
});

test("arguments that Linux has no room for are refused", async () => {
  for (const timeoutMs of [Number.NaN, 1e300, -1]) await assert.rejects(box.commands.run("true", { timeoutMs }), InvalidArgumentError);
  assert.equal((await box.commands.run("echo on", { timeoutMs: Infinity })).stdout, "on\n");
  for (const envs of [{ "": "x" }, { "A=B": "x" }, { A: "a\0b" }]) await assert.rejects(box.commands.run("true", { envs }), InvalidArgumentError);
  await assert.rejects(box.commands.run("true", { user: "\udc00" }), { name: "InvalidArgumentError", kind: "invalid" });
  assert.equal((await box.commands.run("echo $constructor")).stdout, "of the box\n");
  const handle = await box.commands.run("sleep 1000", { background: true });
  for (const signal of [0, 65, 1.5, Number.NaN]) await assert.rejects(handle.signal(signal), InvalidArgumentError);
  await assert.rejects(box.commands.connect(Number.NaN), InvalidArgumentError);
  await handle.kill();
});

test("streams of a command are web streams", async () => {
  const handle = await box.commands.run("tr a-z A-Z", { background: true, stdin: true, capture: false });
  const source = new Blob(["shout"]).stream();
  const [text] = await Promise.all([new Response(handle.readable("stdout")).text(), source.pipeTo(handle.writable())]);
  assert.equal(text, "SHOUT");
  // A read that waits is no obstacle.
  const silent = await box.commands.run("sleep 1000", { background: true, capture: false });
  const waiting = silent.readable("stdout").getReader();
  const read = waiting.read();
  await waiting.cancel();
  assert.equal((await read).done, true);
  await silent.kill();
  const endless = await box.commands.run("yes", { background: true, capture: false });
  const reader = endless.readable("stdout").getReader();
  assert.ok(((await reader.read()).value?.length ?? 0) > 0);
  await reader.cancel();
  assert.equal(await endless.kill(), true);
  await assert.rejects(endless.wait(), { exitCode: 137 });
});

test("a command ends when its time is over", async () => {
  await assert.rejects(box.commands.run("sleep 100", { timeoutMs: 100 }), TimeoutError);
  await assert.rejects(box.commands.run("trap '' TERM; sleep 100 & wait; sleep 100", { timeoutMs: 100 }), TimeoutError);
  assert.equal((await box.commands.run("echo in time", { timeoutMs: 60_000 })).stdout, "in time\n");
});

test("a signal of the caller's cancels a command", async () => {
  const controller = new AbortController();
  const running = box.commands.run(["sleep", "4321"], { signal: controller.signal });
  await until("it runs", async () => (await box.commands.list()).some(({ cmd }) => cmd === "sleep 4321"));
  controller.abort(new Error("enough"));
  await assert.rejects(running, CancelledError);
  await until("it is gone", async () => !(await box.commands.list()).some(({ cmd }) => cmd === "sleep 4321"));
  await assert.rejects(box.commands.run("true", { signal: controller.signal }), CancelledError);
});

test("processes are listed and killed", async () => {
  const handle = await box.commands.run(["sleep", "1234"], { background: true, user: "strata" });
  const uid = Number((await box.commands.run("id -u strata")).stdout);
  const listed = async (): Promise<ProcessInfo | undefined> => (await box.commands.list()).find(({ pid }) => pid === handle.pid);
  await until("it sleeps", async () => (await listed())?.state === "S");
  const found = await listed();
  assert.deepEqual([found?.cmd, found?.uid], ["sleep 1234", uid]);
  assert.equal(await box.commands.kill(handle.pid), true);
  await assert.rejects(handle.wait(), { exitCode: 137 });
  assert.equal(await handle.kill(), false);
  assert.equal(await box.commands.kill(handle.pid), false);
  assert.equal(await box.commands.kill(-1), false);
  // One that was started by another command.
  const { stdout } = await box.commands.run("setsid sleep 1235 >/dev/null & echo $!");
  const pid = Number(stdout);
  assert.equal(await box.commands.kill(pid), true);
  assert.equal((await box.commands.list()).some(({ cmd }) => cmd === "sleep 1235"), false);
  // The first one gets no signals.
  await assert.rejects(box.commands.kill(1), /process 1 was sent SIGKILL, and is still there/);
});

test("a handle disconnects, and another one connects", async () => {
  const handle = await box.commands.run("echo first; read a; echo $a", { background: true, stdin: true });
  await until("it has begun", () => handle.stdout === "first\n");
  await handle.disconnect();
  await assert.rejects(handle.wait(), DisconnectedError);
  const again = await box.commands.connect(handle.pid);
  await again.sendStdin("second\n");
  assert.equal((await again.wait()).stdout, "second\n");
  await assert.rejects(box.commands.connect(handle.pid), NotFoundError);
});

test("another client connects to a command", async () => {
  const handle = await box.commands.run("read a; echo $a; read b; echo $b; exit 5", { background: true, stdin: true, detach: true });
  const other = await Sandbox.connect(box.sandboxId);
  const watching = await other.commands.connect(handle.pid);
  await handle.sendStdin("one\n");
  await until("both have seen it", () => handle.stdout === "one\n" && watching.stdout === "one\n");
  assert.equal(await watching.kill(), true);
  await assert.rejects(handle.wait(), { exitCode: 137 });
  await assert.rejects(watching.wait(), { exitCode: 137 });
  await assert.rejects(other.commands.connect(handle.pid), NotFoundError);
});

test("a command is ended with what it has started", async () => {
  const sleeping = async (): Promise<boolean> => (await box.commands.list()).some(({ cmd }) => cmd === "sleep 988");
  await assert.rejects(box.commands.run("sleep 988; echo never", { timeoutMs: 300 }), TimeoutError);
  await until("it is gone", async () => !(await sleeping()));
  const handle = await box.commands.run("sleep 988; echo never", { background: true });
  await until("it runs", sleeping);
  await handle.kill();
  await until("it is gone", async () => !(await sleeping()));
});

test("many commands run at once", async () => {
  const results = await Promise.all(Array.from({ length: 50 }, (_, n) => box.commands.run(`echo ${n}`)));
  assert.deepEqual(
    results.map(({ stdout }) => stdout),
    Array.from({ length: 50 }, (_, n) => `${n}\n`),
  );
});

test("a signal is sent", async () => {
  const handle = await box.commands.run("trap 'echo usr; exit 3' USR1; echo up; while :; do sleep 0.01; done", { background: true });
  await until("it has begun", () => handle.stdout === "up\n");
  await handle.signal(10);
  await assert.rejects(handle.wait(), { exitCode: 3, stdout: "up\nusr\n" });
  const outputs: Output[] = [];
  for await (const output of await box.commands.run("exit 0", { background: true })) outputs.push(output);
  assert.deepEqual(outputs, []);
});
