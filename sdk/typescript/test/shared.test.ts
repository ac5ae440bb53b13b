/** The connection that operations on files share: how many there are, and how they end. */

import assert from "node:assert/strict";
import { mkdtemp, readdir, readlink, rm } from "node:fs/promises";
import { createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { once } from "node:events";
import { test } from "node:test";
import { Worker } from "node:worker_threads";

import { Defaults } from "../src/commands/exec.js";
import { Filesystem } from "../src/files/files.js";
import { DisconnectedError, Sandbox } from "../src/index.js";
import { Decoder, encode, Kind, PREAMBLE, type Frame } from "../src/protocol/frame.js";
import type { SandboxRecord } from "../src/sandbox/record.js";
import { LIMITS, Shared } from "../src/shared.js";
import { hostBox, PATIENCE, until } from "./support.js";

// However long the tests take.
LIMITS.idle = PATIENCE;

/** The sockets of this process. */
async function sockets(): Promise<number> {
  const links = (await readdir("/proc/self/fd")).map((name) => readlink(`/proc/self/fd/${name}`).catch(() => ""));
  return (await Promise.all(links)).filter((link) => link.startsWith("socket:")).length;
}

test("idle connections are limited, and none with an operation is closed", async () => {
  await using box = await hostBox();
  const busy = await Sandbox.connect(box.sandboxId);
  const others: Sandbox[] = [];
  for (let number = 0; number < 80; number += 1) others.push(await Sandbox.connect(box.sandboxId));
  const before = await sockets();
  let more = (): void => undefined;
  const wait = new Promise<void>((resolve) => (more = resolve));
  async function* slow(): AsyncGenerator<Uint8Array> {
    yield Buffer.from("first ");
    await wait;
    yield Buffer.from("second");
  }
  const writing = busy.files.write("/busy", slow());
  for (const other of others) assert.equal(await other.files.exists("/"), true);
  await until("64 are idle and one is busy", async () => (await sockets()) === before + 65);
  more();
  await writing;
  assert.equal(await busy.files.read("/busy"), "first second");
  // Each is connected anew, all at once too.
  for (const other of others) assert.equal(await other.files.exists("/"), true);
  for (let turn = 0; turn < 3; turn += 1) {
    const looks = await Promise.all(others.map((other) => other.files.exists("/")));
    assert.deepEqual(new Set(looks), new Set([true]));
  }
  await until("64 are idle", async () => (await sockets()) === before + 64);
});

/** An owner that the test is: what comes on a connection is handed to `serve`, by the connection's index and the request's. */
class Peer implements AsyncDisposable {
  readonly sockets: Socket[] = [];
  readonly files: Filesystem;
  readonly #directory: string;
  readonly #server: Server;

  private constructor(directory: string, serve: (socket: Socket, frame: Frame, at: [number, number]) => void) {
    this.#directory = directory;
    this.#server = createServer((socket) => {
      const connection = this.sockets.push(socket) - 1;
      const decoder = new Decoder();
      let request = 0;
      socket.write(PREAMBLE);
      socket.on("error", () => undefined);
      socket.on("data", (bytes: Uint8Array) => decoder.push(bytes).forEach((frame) => serve(socket, frame, [connection, request++])));
    });
    const owner = { directory, name: "peer" };
    const record = { defaults: { user: "", workdir: "/", env: [] } } as unknown as SandboxRecord;
    this.files = new Filesystem(owner, new Shared(owner), new Defaults(record));
  }

  static async listen(serve: (socket: Socket, frame: Frame, at: [number, number]) => void): Promise<Peer> {
    const directory = await mkdtemp(join(tmpdir(), "peer-"));
    const peer = new Peer(directory, serve);
    peer.#server.listen(join(directory, "control"));
    await once(peer.#server, "listening");
    return peer;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.sockets) socket.destroy();
    this.#server.close();
    await rm(this.#directory, { recursive: true });
  }
}

function answer(socket: Socket, { number }: Frame, ...messages: object[]): void {
  for (const message of messages) socket.write(encode(Kind.message, number, Buffer.from(JSON.stringify(message))));
}

/** Answers as an owner whose operations all succeed. */
function perform(socket: Socket, frame: Frame): void {
  const { type } = JSON.parse(Buffer.from(frame.body).toString()) as { type: string };
  if (type === "uncount") answer(socket, frame, { type: "uncounted" });
  else answer(socket, frame, { type: "started", pid: 1, window: 0 }, { type: "exited", status: { exited: 0 } });
}

test("an operation is begun anew if the connection had ended before it", async () => {
  await using peer = await Peer.listen(perform);
  assert.equal(await peer.files.makeDir("/made"), true);
  const [socket] = peer.sockets;
  // At once, so that nothing has been received of the end.
  socket?.destroy();
  assert.equal(await peer.files.makeDir("/made"), true);
  assert.equal(peer.sockets.length, 2);
});

test("an operation that may have begun is not repeated", async () => {
  let begun = 0;
  await using peer = await Peer.listen((socket, frame, [, request]) => {
    if (request < 2) return perform(socket, frame);
    begun += 1;
    socket.destroy();
  });
  assert.equal(await peer.files.makeDir("/made"), true);
  await assert.rejects(peer.files.makeDir("/made"), DisconnectedError);
  assert.deepEqual([begun, peer.sockets.length], [1, 1]);
});

test("an idle connection keeps no worker alive", async () => {
  await using box = await hostBox();
  const index = new URL("../src/index.js", import.meta.url).href;
  const work = `import(${JSON.stringify(index)}).then(async ({ Sandbox }) => {
    const box = await Sandbox.connect(${JSON.stringify(box.sandboxId)});
    require("node:worker_threads").parentPort.postMessage(await box.files.exists("/"));
  });`;
  const worker = new Worker(work, { eval: true });
  const [[seen], [code]] = (await Promise.all([once(worker, "message"), once(worker, "exit")])) as [[boolean], [number]];
  assert.deepEqual([seen, code], [true, 0]);
});
