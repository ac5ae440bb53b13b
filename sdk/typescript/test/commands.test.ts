import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { after, before, test } from "node:test";

import { CancelledError, CommandExitError, CommandStartError, DisconnectedError } from "../src/index.js";
import { InvalidArgumentError, NotFoundError, Sandbox, TimeoutError, type Output } from "../src/index.js";
import { hostBox, noise, until } from "./support.js";

let box: Sandbox;
before(async () => {
  box = await hostBox({ envs: { FROM_BOX: "yes" } });
});
after(() => box.kill());

test("a command has its output, its environment and its place", async () => {
  const script = 'echo "$FROM_BOX $LANG $A"; pwd; id -u; echo err >&2';
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
  const found = (await box.commands.list()).find(({ pid }) => pid === handle.pid);
  assert.deepEqual([found?.cmd, found?.uid, found?.state], ["sleep 1234", uid, "S"]);
  assert.equal(await box.commands.kill(handle.pid), true);
  await assert.rejects(handle.wait(), { exitCode: 137 });
  assert.equal(await handle.kill(), false);
  assert.equal(await box.commands.kill(handle.pid), false);
  assert.equal(await box.commands.kill(-1), false);
  // One that was started by another command.
  const { stdout } = await box.commands.run("setsid sleep 1235 >/dev/null & echo $!");
  const pid = Number(stdout);
  assert.equal(await box.commands.kill(pid), true);
  await until("it is gone", async () => !(await box.commands.list()).some(({ cmd }) => cmd === "sleep 1235"));
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
