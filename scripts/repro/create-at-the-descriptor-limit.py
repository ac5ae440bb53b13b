#!/usr/bin/env python3
"""A shared folder whose server is out of descriptors: open(O_CREAT | O_EXCL) of a file with mode 0444 (git's objects,
lock files) inside fails with EMFILE or ENFILE and leaves no file outside. With EEXIST, a program that takes a lock so would
wait for ever for a holder that does not exist. `ulimit -n 256` around mica makes it quick."""

import atexit
import gzip
import hashlib
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile

MICA = os.environ.get("MICA", "mica")
# A folder is shared with machines only.
BACKEND = "qemu"
BUSYBOX = os.environ.get("BUSYBOX", "/bin/busybox")
WORK = tempfile.mkdtemp(prefix="mica-repro-")
atexit.register(shutil.rmtree, WORK, ignore_errors=True)
ENV = dict(os.environ, MICABOX_HOME=os.path.join(WORK, "home"))
PROGRAM = r"""
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <sys/resource.h>
int main(void) {
    struct rlimit many = {8192, 8192};
    setrlimit(RLIMIT_NOFILE, &many);
    for (int n = 0; n < 2000; n++) {
        char name[64];
        snprintf(name, sizeof name, "/src/lock%d", n);
        if (open(name, O_CREAT | O_EXCL | O_WRONLY, 0444) < 0) {
            int error = errno;
            printf("%d %d %d\n", n, error, access(name, F_OK) == 0);
            return 0;
        }
    }
    printf("2000 0 0\n");
    return 0;
}
"""


def sha(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def image(program):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, source in (("bin/busybox", BUSYBOX), ("bin/create", program)):
            tar.add(source, name)
        entry = tarfile.TarInfo("bin/sh")
        entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
        tar.addfile(entry)
    layer = out.getvalue()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": ["sh"]},
            "rootfs": {"type": "layers", "diff_ids": [sha(layer)]},
        }
    ).encode()
    blob = gzip.compress(layer, mtime=0)
    kinds = "application/vnd.oci.image."
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": kinds + "manifest.v1+json",
            "config": {
                "mediaType": kinds + "config.v1+json",
                "digest": sha(config),
                "size": len(config),
            },
            "layers": [
                {"mediaType": kinds + "layer.v1.tar+gzip", "digest": sha(blob), "size": len(blob)}
            ],
        }
    ).encode()
    path = os.path.join(WORK, "layout")
    os.makedirs(path + "/blobs/sha256")
    for data in (config, blob, manifest):
        with open(path + "/blobs/sha256/" + sha(data)[7:], "wb") as file:
            file.write(data)
    with open(path + "/oci-layout", "w") as file:
        file.write('{"imageLayoutVersion":"1.0.0"}')
    with open(path + "/index.json", "w") as file:
        json.dump(
            {
                "schemaVersion": 2,
                "manifests": [
                    {
                        "mediaType": kinds + "manifest.v1+json",
                        "digest": sha(manifest),
                        "size": len(manifest),
                        "annotations": {"org.opencontainers.image.ref.name": "repro/create:1"},
                    }
                ],
            },
            file,
        )
    return path


source, program = os.path.join(WORK, "create.c"), os.path.join(WORK, "create")
with open(source, "w") as file:
    file.write(PROGRAM)
if subprocess.run(["cc", "-static", "-O1", "-o", program, source], check=False).returncode:
    sys.exit(2)
if subprocess.run(
    [MICA, "load", image(program)], check=False, env=ENV, stdout=subprocess.DEVNULL
).returncode:
    sys.exit(2)
shared = os.path.join(WORK, "shared")
os.mkdir(shared)
few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
done = subprocess.run(
    [
        MICA,
        "run",
        "--rm",
        "-q",
        "--backend",
        BACKEND,
        "-u",
        "0",
        "-v",
        shared + ":/src",
        "repro/create:1",
        "/bin/create",
    ],
    check=False,
    env=ENV,
    capture_output=True,
    text=True,
    timeout=120,
    preexec_fn=few,
)
if done.returncode or len(done.stdout.split()) != 3:
    print("can't be tried:", done.stderr.strip()[-200:])
    sys.exit(2)
count, error, is_there = map(int, done.stdout.split())
left = len(os.listdir(shared))
name = os.strerror(error) if error else "none"
ok = error in (0, 23, 24) and left == count
print(
    f"{'ok   ' if ok else 'WRONG'} after {count} files the error is: {name}; the name exists inside: {bool(is_there)}; files outside: {left}"
)
sys.exit(0 if ok else 1)
