/** A small image as `docker save` writes it: Debian's busybox-static, and a file. */

import { createHash, randomUUID } from "node:crypto";
import { execFile } from "node:child_process";
import { cp, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

const run = promisify(execFile);

/** Makes a root directory's archive. */
export async function rootArchive(): Promise<Buffer> {
  return inDirectory(async (directory) => {
    await mkdir(join(directory, "root/bin"), { recursive: true });
    await cp("/bin/busybox", join(directory, "root/bin/busybox"), { dereference: true });
    await symlink("busybox", join(directory, "root/bin/sh"));
    await symlink("busybox", join(directory, "root/bin/cat"));
    await writeFile(join(directory, "root/file"), "in the image");
    // Otherwise two of the same second are one image, which is here as long as either has a name.
    await writeFile(join(directory, "root/id"), randomUUID());
    return pack(directory, "root.tar", ["-C", join(directory, "root"), "."]);
  });
}

/** Makes an image's archive. */
export async function imageArchive(): Promise<Buffer> {
  const layer = await rootArchive();
  return inDirectory(async (directory) => {
    const digest = createHash("sha256").update(layer).digest("hex");
    const config = { Env: ["PATH=/bin"], WorkingDir: "/" };
    const document = { architecture: "amd64", os: "linux", config, rootfs: { type: "layers", diff_ids: [`sha256:${digest}`] } };
    await writeFile(join(directory, "layer.tar"), layer);
    await writeFile(join(directory, "config.json"), JSON.stringify(document));
    const manifest = [{ Config: "config.json", RepoTags: [], Layers: ["layer.tar"] }];
    await writeFile(join(directory, "manifest.json"), JSON.stringify(manifest));
    return pack(directory, "image.tar", ["-C", directory, "manifest.json", "config.json", "layer.tar"]);
  });
}

async function pack(directory: string, name: string, what: string[]): Promise<Buffer> {
  await run("tar", ["--owner=0", "--group=0", "-cf", join(directory, name), ...what]);
  return readFile(join(directory, name));
}

async function inDirectory<T>(work: (directory: string) => Promise<T>): Promise<T> {
  const directory = await mkdtemp(join(tmpdir(), "archive-"));
  try {
    return await work(directory);
  } finally {
    await rm(directory, { recursive: true });
  }
}
