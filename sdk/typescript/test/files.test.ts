import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readdir } from "node:fs/promises";
import { after, before, test } from "node:test";
import { runInNewContext } from "node:vm";

import { CancelledError, FileError, FileExistsError, FileNotFoundError, InvalidArgumentError } from "../src/index.js";
import { NotFoundError, PermissionError, type Data } from "../src/index.js";
import { Sandbox, type FilesystemEvent, type WatchHandle } from "../src/index.js";
import { hostBox, noise, until } from "./support.js";

let box: Sandbox;
before(async () => {
  box = await hostBox();
});
after(() => box.kill());

async function sh(script: string): Promise<string> {
  return (await box.commands.run(script)).stdout;
}

test("files are written as programs inside see them", async () => {
  assert.deepEqual(await box.files.write("/srv/new/dir/file", "text"), { name: "file", path: "/srv/new/dir/file", type: "file" });
  assert.equal(await sh("cat /srv/new/dir/file; stat -c ' %a %u' /srv/new/dir/file"), "text 644 0\n");
  await box.files.write("/srv/new/dir/file", new Uint8Array([65, 66]).buffer);
  assert.equal(await sh("cat /srv/new/dir/file"), "AB");
  await box.files.write([
    { path: "/srv/blob", data: new Blob(["blob"]) },
    { path: "relative", data: new Blob(["stream"]).stream() },
  ]);
  assert.equal(await sh("cat /srv/blob /app/relative"), "blobstream");
  const many = Array.from({ length: 2000 }, (_, n) => ({ path: `/srv/many/${n % 10}/${n}`, data: `${n}\n` }));
  assert.equal((await box.files.write(many)).length, 2000);
  assert.equal(await sh("cat /srv/many/*/* | sort -n | md5sum; seq 0 1999 | md5sum").then((said) => new Set(said.trim().split("\n")).size), 1);
  assert.equal((await box.files.write([])).length, 0);
  const below = [{ path: "/srv/first", data: "" }, { path: "/srv/first/below", data: "" }, { path: "/srv/never", data: "" }];
  await assert.rejects(box.files.write(below), { name: "FileError", message: /`\/srv\/first\/below`/ });
  assert.deepEqual([await box.files.exists("/srv/first"), await box.files.exists("/srv/never")], [true, false]);
  await box.files.write("/tmp/theirs", "x", { user: "strata" });
  assert.equal(await sh("stat -c %U /tmp/theirs"), "strata\n");
  await box.files.write("/srv/empty", "");
  assert.equal(await sh("stat -c %s /srv/empty"), "0\n");
});

test("files are read in every form", async () => {
  await sh("printf 'caf\\303\\251' >/srv/text");
  assert.equal(await box.files.read("/srv/text"), "caf\u00e9");
  assert.deepEqual(await box.files.read("/srv/text", { format: "bytes" }), new Uint8Array([99, 97, 102, 0xc3, 0xa9]));
  assert.equal(await (await box.files.read("/srv/text", { format: "blob" })).text(), "caf\u00e9");
  assert.equal(await new Response(await box.files.read("/srv/text", { format: "stream" })).text(), "caf\u00e9");
  assert.equal(await box.files.read("/srv/text", { offset: 1, length: 2 }), "af");
});

test("a large file is streamed both ways", async () => {
  const bytes = noise(50 << 20);
  await box.files.write("/srv/large", new Blob([bytes]).stream());
  const sha256 = createHash("sha256").update(bytes).digest("hex");
  assert.equal((await sh("sha256sum </srv/large")).split(" ")[0], sha256);
  const received = createHash("sha256");
  for await (const piece of await box.files.read("/srv/large", { format: "stream" })) received.update(piece);
  assert.equal(received.digest("hex"), sha256);
  const reader = (await box.files.read("/srv/large", { format: "stream" })).getReader();
  await reader.read();
  await reader.cancel();
  // Neither does one that was never read keep anything alive.
  await (await box.files.read("/srv/large", { format: "stream" })).cancel();
  await until("no operation is left", async () => (await box.commands.list()).every(({ cmd }) => cmd.startsWith("mica-guest --on-host")));
  await box.files.remove("/srv/large");
});

test("a source that fails is the writer's error", async () => {
  async function* source(): AsyncGenerator<Uint8Array> {
    yield noise(100_000);
    throw new Error("the source is gone");
  }
  await assert.rejects(box.files.write("/srv/half", source()), /the source is gone/);
});

test("bytes have a buffer of their own", async () => {
  await box.files.write("/srv/floats", new Float32Array([1, 2, 3]));
  const { buffer } = await box.files.read("/srv/floats", { format: "bytes" });
  assert.deepEqual(new Float32Array(buffer), new Float32Array([1, 2, 3]));
});

test("data that can't be written leaves the file as it is", async () => {
  await box.files.write("/srv/kept", "old");
  const broken = async function* (): AsyncGenerator<Uint8Array> {
    throw new Error("the source is gone");
  };
  const wrong: unknown[] = [undefined, null, 7, [1, 2], { a: 1 }, new String("x"), new Blob(["x"]).stream().pipeThrough(new TextDecoderStream())];
  for (const data of wrong) await assert.rejects(box.files.write("/srv/kept", data as Data), InvalidArgumentError);
  await assert.rejects(box.files.write("/srv/kept", broken()), /the source is gone/);
  await assert.rejects(box.files.write("/srv/kept", "new", { signal: AbortSignal.abort() }), CancelledError);
  const silent = new ReadableStream<Uint8Array>();
  await assert.rejects(box.files.write("/srv/kept", silent, { signal: AbortSignal.timeout(50) }), CancelledError);
  assert.equal(await box.files.read("/srv/kept"), "old");
  const right: Data[] = [new Uint16Array([0x6261]), new DataView(new ArrayBuffer(2)), new SharedArrayBuffer(2), runInNewContext("new Uint8Array(2)") as Uint8Array];
  for (const data of right) {
    await box.files.write("/srv/kept", data);
    assert.equal((await box.files.getInfo("/srv/kept")).size, 2);
  }
});

test("a source is cancelled when nothing is written", async () => {
  let isCancelled = false;
  const source = new ReadableStream<Uint8Array>({
    pull: (controller) => controller.enqueue(new Uint8Array(10)),
    cancel: () => {
      isCancelled = true;
    },
  });
  await assert.rejects(box.files.write("/srv", source), FileError);
  await until("the source is cancelled", () => isCancelled);
});

test("no path and numbers that are none are refused", async () => {
  await box.files.write("kept", "1");
  const { files } = box;
  const all = [files.remove(""), files.read(""), files.write("", "x"), files.list(""), files.exists(""), files.getInfo(""), files.makeDir("")];
  const others = [files.rename("", "a"), files.rename("kept", ""), files.watchDir("", () => undefined)];
  await Promise.all([...all, ...others].map((operation) => assert.rejects(operation, InvalidArgumentError)));
  assert.equal(await files.exists("kept"), true);
  for (const offset of [-1, 0.5, Number.NaN, 1e300]) await assert.rejects(files.read("kept", { offset }), InvalidArgumentError);
  for (const length of [-1, 0.5, Number.NaN]) await assert.rejects(files.read("kept", { length }), InvalidArgumentError);
  for (const depth of [0, -1, 1.5, Infinity]) await assert.rejects(files.list("/srv", { depth }), InvalidArgumentError);
});

test("directories are listed", async () => {
  await sh("mkdir -p /srv/list/sub; cd /srv/list; ln -s sub/deep link; echo 12345 >sub/deep; mkfifo pipe; chmod 4711 sub/deep; : >$(printf '\\377')");
  const entries = await box.files.list("/srv/list");
  const byName = new Map(entries.map((entry) => [entry.name, entry]));
  assert.deepEqual([...byName.keys()].sort(), ["link", "pipe", "sub", "\ufffd"]);
  assert.equal(byName.get("link")?.symlinkTarget, "sub/deep");
  assert.equal(byName.get("pipe")?.type, "fifo");
  assert.deepEqual(byName.get("\ufffd")?.rawPath, Buffer.from("/srv/list/\xff", "latin1"));
  const deep = (await box.files.list("/srv/list", { depth: 2 })).find(({ name }) => name === "deep");
  const stat = await sh("stat -c '%s %A %u %g %Y' /srv/list/sub/deep");
  const { size, permissions, uid, gid, modifiedTime, path } = deep ?? assert.fail("no entry");
  assert.equal(`${size} -${permissions} ${uid} ${gid} ${Math.floor(modifiedTime.getTime() / 1000)}\n`, stat);
  assert.equal(path, "/srv/list/sub/deep");
  assert.deepEqual(await box.files.list("/srv/list/sub/deep").catch((error: FileError) => error.errno), 20);
});

test("what is there is told apart from what is not", async () => {
  await sh("ln -sf nowhere /srv/dangling");
  assert.deepEqual(await Promise.all(["/srv", "/srv/dangling", "/srv/none"].map((path) => box.files.exists(path))), [true, true, false]);
  const link = await box.files.getInfo("/srv/dangling");
  assert.deepEqual([link.type, link.symlinkTarget], ["symlink", "nowhere"]);
  assert.equal((await box.files.getInfo("/srv")).type, "dir");
  await assert.rejects(box.files.getInfo("/srv/none"), FileNotFoundError);
});

test("directories are made, files renamed and removed", async () => {
  assert.equal(await box.files.makeDir("/srv/made/deep"), true);
  assert.equal(await box.files.makeDir("/srv/made/deep"), false);
  await box.files.write("/srv/made/file", "1");
  await assert.rejects(box.files.makeDir("/srv/made/file"), FileExistsError);
  const moved = await box.files.rename("/srv/made/file", "/srv/made/deep/moved");
  assert.deepEqual([moved.path, moved.size], ["/srv/made/deep/moved", 1]);
  assert.equal(await sh("cd /srv/made; find . -type f"), "./deep/moved\n");
  assert.equal((await box.files.rename("/srv/made/deep/moved", "/srv/made/new/deep/moved")).size, 1);
  await assert.rejects(box.files.rename("/srv/none", "/srv/made/other/none"), {
    name: "FileNotFoundError",
    message: "cannot rename `/srv/none` to `/srv/made/other/none`: no such file or directory",
  });
  assert.equal(await box.files.exists("/srv/made/other"), false);
  await box.files.remove("/srv/made");
  assert.equal(await sh("ls -d /srv/made 2>&1 || true"), "ls: cannot access '/srv/made': No such file or directory\n");
});

test("operations that fail say why", async () => {
  await assert.rejects(box.files.read("/srv/none"), (error: unknown) => {
    assert.ok(error instanceof FileNotFoundError && error instanceof NotFoundError);
    assert.match(error.message, /cannot read `\/srv\/none`: .*/);
    return true;
  });
  await assert.rejects(box.files.read("/root", { user: "strata" }), PermissionError);
  await assert.rejects(box.files.write("/root/theirs", "x", { user: "strata" }), PermissionError);
  await assert.rejects(box.files.write("/etc/passwd/below", "x"), FileError);
  await assert.rejects(box.files.remove("/srv/none"), FileNotFoundError);
  await assert.rejects(box.files.rename("/srv/none", "/srv/other"), FileNotFoundError);
  await assert.rejects(box.files.list("/srv/none"), FileNotFoundError);
  await assert.rejects(box.files.read("nul\0byte"), /NUL/);
  await assert.rejects(box.files.read("/etc/passwd", { user: "no-such-user" }), { reason: "no_such_user" });
});

test("a directory is watched until it is stopped", async () => {
  await box.files.makeDir("/srv/watched");
  const events: FilesystemEvent[] = [];
  let exits = 0;
  const watch = await box.files.watchDir("/srv/watched", (event) => void events.push(event), { onExit: () => void (exits += 1) });
  await sh("cd /srv/watched; echo 1 >a; chmod 600 a; mv a b; rm b");
  const seen = (): string[] => [...new Set(events.map(({ name, type }) => `${type} ${name}`))];
  await until("the removal is seen", () => seen().includes("remove b"));
  assert.deepEqual(seen(), ["create a", "write a", "chmod a", "rename a", "create b", "remove b"]);
  await watch.stop();
  assert.equal(exits, 1);
  const count = events.length;
  await sh("touch /srv/watched/late");
  assert.equal(events.length, count);
  await assert.rejects(box.files.watchDir("/srv/none", () => undefined), FileNotFoundError);
});

test("a watch is stopped by its own callbacks", async () => {
  await box.files.makeDir("/srv/stopped");
  let exits = 0;
  const watch: WatchHandle = await box.files.watchDir("/srv/stopped", () => watch.stop(), {
    onExit: async () => {
      await watch.stop();
      exits += 1;
      throw new Error("the caller's");
    },
  });
  await sh("touch /srv/stopped/file");
  await until("it has ended", () => exits === 1);
  await watch.stop();
  // From elsewhere, a callback that runs is waited for.
  let hasRun = false;
  const slow = await box.files.watchDir("/srv/stopped", async () => {
    hasRun = false;
    // Sleep: the callback is slow.
    await new Promise((resolve) => setTimeout(resolve, 50));
    hasRun = true;
  });
  await sh("touch /srv/stopped/other");
  await until("one event is over", () => hasRun);
  await slow.stop();
  assert.equal(hasRun, true);
});

test("a watch that is recursive sees directories that are new, and ends with its directory", async () => {
  await box.files.makeDir("/srv/deep/below");
  const names: string[] = [];
  let hasEnded = false;
  await using _watch = await box.files.watchDir("/srv/deep", ({ name }) => void names.push(name), {
    recursive: true,
    onExit: () => {
      hasEnded = true;
    },
  });
  await sh("touch /srv/deep/below/file");
  await until("the file is seen", () => names.includes("below/file"));
  await sh("rm -r /srv/deep");
  await until("the watch has ended", () => hasEnded);
});

test("operations share a connection, and none waits for another", async () => {
  const descriptors = async (): Promise<number> => (await readdir("/proc/self/fd")).length;
  const other = await Sandbox.connect(box.sandboxId);
  await other.files.exists("/");
  const before = await descriptors();
  let more = (): void => undefined;
  const wait = new Promise<void>((resolve) => (more = resolve));
  async function* slow(): AsyncGenerator<Uint8Array> {
    yield Buffer.from("first ");
    await wait;
    yield Buffer.from("second");
  }
  const writing = other.files.write("/srv/slow", slow());
  for (let number = 0; number < 20; number += 1) {
    const looks = Array.from({ length: 50 }, (_, n) => other.files.exists(n % 2 === 0 ? "/srv" : `/srv/none-${n}`));
    assert.deepEqual(new Set((await Promise.all(looks)).filter((_, n) => n % 2 === 0)), new Set([true]));
  }
  assert.ok((await descriptors()) <= before, "more descriptors than before");
  more();
  await writing;
  assert.equal(await other.files.read("/srv/slow"), "first second");
  const controller = new AbortController();
  async function* endless(): AsyncGenerator<Uint8Array> {
    yield Buffer.from("first");
    controller.abort();
    await new Promise(() => undefined);
  }
  const look = other.files.exists("/srv");
  await assert.rejects(other.files.write("/srv/endless", endless(), { signal: controller.signal }), CancelledError);
  assert.deepEqual([await look, await other.files.exists("/srv/slow")], [true, true]);
});
