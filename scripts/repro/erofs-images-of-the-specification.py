#!/usr/bin/env python3
"""Images of EROFS layers as the draft specification writes them (`application/vnd.erofs`). (1) Their configs need no
`rootfs.diff_ids`: a raw layer's diff ID is its digest, a compressed one's is in the annotation
org.erofs.uncompressed-digest. (2) A layer with the role `device` or `overlay-data` holds only bytes of others: its own tree is
not part of the root. (3) A chunk index as a layer of its own is skipped."""

import atexit
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

MICA = os.environ.get("MICA", "mica")
BACKEND = os.environ.get("BACKEND", "host")
BUSYBOX = os.environ.get("BUSYBOX", "/bin/busybox")
WORK = tempfile.mkdtemp(prefix="mica-repro-")
atexit.register(shutil.rmtree, WORK, ignore_errors=True)
ENV = dict(os.environ, MICABOX_HOME=os.path.join(WORK, "home"))
RAW, ZSTD = "application/vnd.erofs", "application/vnd.erofs+zstd"
MANIFEST, CONFIG = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.config.v1+json",
)
UNKNOWN = object()
bad = 0


def sha(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def erofs(name, files):
    tree = os.path.join(WORK, name)
    for path, data in files.items():
        path = os.path.join(tree, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if isinstance(data, str):
            os.symlink(data, path)
        else:
            with open(path, "wb") as file:
                file.write(data)
            os.chmod(path, 0o755)
    image = tree + ".erofs"
    if subprocess.run(
        ["mkfs.erofs", "-T0", image, tree], check=False, capture_output=True
    ).returncode:
        print("mkfs.erofs does not work here")
        sys.exit(2)
    with open(image, "rb") as file:
        return file.read()


def compressed(data):
    return subprocess.run(["zstd", "-qc"], input=data, capture_output=True, check=True).stdout


class Layout:
    def __init__(self):
        self.path = tempfile.mkdtemp(dir=WORK)
        os.makedirs(self.path + "/blobs/sha256")

    def add(self, data, kind, **more):
        with open(self.path + "/blobs/sha256/" + sha(data)[7:], "wb") as file:
            file.write(data)
        return dict(mediaType=kind, digest=sha(data), size=len(data), **more)

    def image(self, layers, diff_ids=None, features=("erofs",)):
        config = {
            "architecture": "amd64",
            "os": "linux",
            "os.features": list(features),
            "config": {"Cmd": ["sh"], "Env": ["PATH=/bin"]},
        }
        if diff_ids is not None:
            config["rootfs"] = {"type": "layers", "diff_ids": diff_ids}
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.add(json.dumps(config).encode(), CONFIG),
            "layers": [
                self.add(data, kind, **({"annotations": notes} if notes else {}))
                for kind, data, notes in layers
            ],
        }
        return self.add(json.dumps(manifest).encode(), MANIFEST)

    def index(self, entries):
        kind = "application/vnd.oci.image.index.v1+json"
        return self.add(
            json.dumps({"schemaVersion": 2, "mediaType": kind, "manifests": entries}).encode(), kind
        )

    def run(self, entry, *command):
        entry = dict(entry, annotations={"org.opencontainers.image.ref.name": "repro/erofs:1"})
        with open(self.path + "/oci-layout", "w") as file:
            file.write('{"imageLayoutVersion":"1.0.0"}')
        with open(self.path + "/index.json", "w") as file:
            json.dump({"schemaVersion": 2, "manifests": [entry]}, file)
        loaded = subprocess.run(
            [MICA, "load", self.path], check=False, env=ENV, capture_output=True, text=True
        )
        if loaded.returncode:
            return None, loaded.stderr.strip()
        done = subprocess.run(
            [MICA, "run", "--rm", "-q", "--backend", BACKEND, "repro/erofs:1", *command],
            check=False,
            env=ENV,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return (done.stdout.split() if done.returncode == 0 else None), done.stderr.strip()


def check(what, good, seen):
    global bad
    print(("ok    " if good else "WRONG ") + what + ("" if good else ": " + str(seen)[:220]))
    bad += not good


with open(BUSYBOX, "rb") as file:
    shell = file.read()
ROOT = erofs(
    "root", {"bin/busybox": shell, "bin/cat": "busybox", "bin/ls": "busybox", "hello": b"hello\n"}
)
OTHER = erofs("other", {"stranger": b"not of this image\n"})
note = {"org.erofs.uncompressed-digest": sha(ROOT)}

for title, layer, ids in [
    ("raw, with diff IDs", (RAW, ROOT, None), [sha(ROOT)]),
    ("raw, no rootfs in the config", (RAW, ROOT, None), None),
    ("raw, rootfs without diff IDs", (RAW, ROOT, None), []),
    ("zstd, diff ID in the annotation alone", (ZSTD, compressed(ROOT), note), None),
]:
    layout = Layout()
    seen, error = layout.run(layout.image([layer], ids), "cat", "hello")
    check(title, seen == ["hello"], error)

for role in ("device", "overlay-data"):
    layout = Layout()
    layers = [(RAW, OTHER, {"org.erofs.role": role}), (RAW, ROOT, None)]
    seen, error = layout.run(layout.image(layers, [sha(OTHER), sha(ROOT)]), "ls", "/")
    # Refusing it by name is right as well, as long as roles are not done.
    check(
        f"a layer of the role {role} shows none of its files",
        "stranger" not in seen if seen is not None else "role" in error,
        seen or error,
    )

# A standalone chunk index (its contents don't matter here): to be skipped by who does not know it.
index = b"\xcd\xe4\xec\x67\x01" + bytes(27)
layout = Layout()
layers = [
    (RAW, ROOT, None),
    ("application/vnd.erofs.chunk-index.v1", index, {"org.erofs.chunk-index.target": sha(ROOT)}),
]
seen, error = layout.run(layout.image(layers, [sha(ROOT), sha(index)]), "cat", "hello")
check("a chunk index as a layer of its own is skipped", seen == ["hello"], error)

layout = Layout()
strange = dict(
    layout.image([(RAW, OTHER, None)], [sha(OTHER)], ["martian"]),
    platform={"os": "linux", "architecture": "amd64", "os.features": ["martian"]},
)
plain = dict(
    layout.image([(RAW, ROOT, None)], [sha(ROOT)], []),
    platform={"os": "linux", "architecture": "amd64"},
)
seen, error = layout.run(layout.index([strange, plain]), "cat", "hello")
check("an index's manifest with an unknown os.features is not chosen", seen == ["hello"], error)
sys.exit(1 if bad else 0)
