import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { InvalidArgumentError, type Sandbox } from "../src/index.js";
import { hostBox, until } from "./support.js";

let box: Sandbox;
before(async () => {
  box = await hostBox();
});
after(() => box.kill());

test("a terminal has a shell, a size and input", async () => {
  let screen = "";
  const decoder = new TextDecoder();
  const onData = (data: Uint8Array): void => {
    screen += decoder.decode(data, { stream: true });
  };
  const terminal = await box.pty.create({ rows: 30, cols: 100, onData, envs: { PS1: "> " } });
  await box.pty.sendInput(terminal.pid, "tty; stty size; echo shell=$0\n");
  await until("the size is shown", () => /\/dev\/pts\/\d+\r\n30 100\r\nshell=bash/.test(screen));
  await box.pty.resize(terminal.pid, { rows: 40, cols: 120 });
  await box.pty.sendInput(terminal.pid, "stty size\n");
  await until("the new size is shown", () => screen.includes("40 120\r\n"));
  let second = "";
  const other = await box.pty.connect(terminal.pid, { onData: (data) => void (second += Buffer.from(data).toString()) });
  await box.pty.sendInput(terminal.pid, "echo $((6 * 7))\nexit 5\n");
  await assert.rejects(terminal.wait(), { name: "CommandExitError", exitCode: 5 });
  await assert.rejects(other.wait(), { exitCode: 5 });
  assert.match(second, /[\r\n]42\r\n/);
});

test("a size that no terminal has is refused", async () => {
  const onData = (): void => undefined;
  for (const rows of [Number.NaN, 24.5, -1, 70_000]) {
    await assert.rejects(box.pty.create({ rows, cols: 80, onData }), InvalidArgumentError);
    const terminal = await box.pty.create({ rows: 24, cols: 80, onData, cmd: ["sleep", "1000"] });
    await assert.rejects(box.pty.resize(terminal.pid, { rows, cols: 80 }), InvalidArgumentError);
    assert.equal(await terminal.kill(), true);
  }
});

test("a program on a terminal is killed", async () => {
  const terminal = await box.pty.create({ rows: 24, cols: 80, onData: () => undefined, cmd: ["sleep", "1000"] });
  assert.equal(await box.pty.kill(terminal.pid), true);
  await assert.rejects(terminal.wait(), { exitCode: 137 });
  assert.equal(await box.pty.kill(terminal.pid), false);
});
