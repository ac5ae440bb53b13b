/** On the backend that this machine has by itself: a virtual machine. */

import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { images, Sandbox, snapshots, UnsupportedError, volumes } from "../src/index.js";
import { rootArchive } from "./archive.js";
import { IMAGE, listed, micaSays } from "./support.js";

test("a machine has a disk, which is snapshotted, compared, committed and kept", async () => {
  await volumes.create("ts-data", { size: "64m" });
  const made = { name: "ts-machine", upper: "disk:1g", memory: "384m", cpus: 1, user: "root", net: "none", rm: false };
  const box = await Sandbox.create(IMAGE, { ...made, volumeMounts: { "/data": "ts-data" } });
  const { memoryMB, cpuCount } = await box.getInfo();
  assert.deepEqual([memoryMB, cpuCount], [384, 1]);
  const total = Number((await box.commands.run("awk '/MemTotal/{print $2}' /proc/meminfo")).stdout);
  assert.ok(total > 300_000 && total < 384 << 10, `${total}`);
  const { stdout } = await box.commands.run("uname -r; mount -t ext4 | grep -c ' /data '");
  assert.match(stdout, /^6\.\d+\.\d+.*\n1\n$/);
  await box.files.write("/srv/kept", "kept");
  await box.files.write("/data/in-volume", "1");
  await box.commands.run("rm /etc/motd; sync");
  const { processorTime, ownMemory, diskWritten } = await box.stats();
  assert.ok(processorTime > 0.1 && (ownMemory ?? 0) > 10_000_000 && diskWritten !== undefined, `${processorTime} ${ownMemory}`);
  const changes = await box.diff();
  assert.ok(changes.some(({ path, kind }) => path === "/srv/kept" && kind === "added"));
  assert.ok(changes.some(({ path, kind }) => path === "/etc/motd" && kind === "deleted"));

  const snapshot = await box.createSnapshot({ name: "ts-snapshot" });
  assert.deepEqual([snapshot.snapshotId, snapshot.sandbox, snapshot.size], ["ts-snapshot", "ts-machine", 1 << 30]);
  await box.files.write("/srv/kept", "changed later");
  assert.match(await box.commit("ts-committed:1", { message: "made by a test", changes: ["ENV FROM=commit"] }), /^sha256:[0-9a-f]{64}$/);
  assert.ok((await images.list()).some(({ references, layers }) => references[0]?.endsWith("ts-committed:1") && layers === 5));
  // A fork needs KVM, and a machine that has no volume.
  await assert.rejects(box.fork(), UnsupportedError);
  await assert.rejects(box.createSnapshot({ name: "ts-memory", memory: true }));

  assert.equal(await box.stop(), true);
  assert.equal((await listed()).get(box.sandboxId), "exited");
  const again = await Sandbox.connect("ts-machine");
  assert.equal(await again.files.read("/srv/kept"), "changed later");
  assert.equal(await again.files.read("/data/in-volume"), "1");
  assert.equal(await Sandbox.kill("ts-machine"), true);

  assert.equal(await micaSays("run", "--rm", "--quiet", "--from", "ts-snapshot", "--", "cat", "/srv/kept"), "kept");
  await snapshots.remove("ts-snapshot");
  assert.deepEqual(await snapshots.list(), []);
  await images.remove("ts-committed:1");
  await volumes.remove("ts-data");
});

test("a root disk takes the place of an image", async () => {
  const directory = await mkdtemp(join(tmpdir(), "disk-"));
  try {
    const [disk, archive] = [join(directory, "disk.ext4"), join(directory, "root.tar")];
    await writeFile(archive, await rootArchive());
    await micaSays("ext4", "mkfs", disk, "--size", "64M");
    await micaSays("ext4", "import", disk, archive);
    await using box = await Sandbox.create({ rootDisk: disk, net: "none" });
    assert.equal((await box.commands.run("cat /file")).stdout, "in the image");
    assert.equal((await box.getInfo()).image, disk);
  } finally {
    await rm(directory, { recursive: true });
  }
});
