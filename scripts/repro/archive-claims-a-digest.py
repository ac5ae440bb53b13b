#!/usr/bin/env python3
"""An archive names its image `repo@sha256:<anything>`. The name is refused or dropped: afterwards the pinned reference
does not stand for another image."""

import atexit
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile

MICA = os.environ.get("MICA", "mica")
WORK = tempfile.mkdtemp(prefix="mica-repro-")
atexit.register(shutil.rmtree, WORK, ignore_errors=True)
ENV = dict(
    os.environ, MICABOX_HOME=os.path.join(WORK, "home"), DOCKER_CONFIG=os.path.join(WORK, "docker")
)


def sha(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def mica(*words, **more):
    env = dict(ENV, **more.pop("env", {}))
    done = subprocess.run(
        [MICA, *words],
        check=False,
        env=env,
        capture_output=True,
        text=True,
        timeout=more.pop("timeout", 120),
        **more,
    )
    return done.returncode, done.stdout + done.stderr


def layer(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
    return out.getvalue()


class Layout:
    """An OCI image layout in memory."""

    def __init__(self):
        self.blobs, self.index = {}, []

    def add(self, data, kind, **more):
        self.blobs[sha(data)] = data
        return dict(mediaType=kind, digest=sha(data), size=len(data), **more)

    def image(self, layers, name=None, change=None, **more):
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": ["sh"]},
            "rootfs": {"type": "layers", "diff_ids": [sha(one) for one in layers]},
        }
        if change:
            change(config)
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": self.add(
                json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"
            ),
            "layers": [
                self.add(gzip.compress(one, mtime=0), "application/vnd.oci.image.layer.v1.tar+gzip")
                for one in layers
            ],
        }
        manifest.update(more)
        entry = self.add(json.dumps(manifest).encode(), manifest["mediaType"])
        if name:
            entry["annotations"] = {"org.opencontainers.image.ref.name": name}
        return entry

    def save(self, entries):
        path = os.path.join(WORK, "image.tar")
        index = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": entries,
        }
        with tarfile.open(path, "w") as tar:

            def put(name, data):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))

            put("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
            put("index.json", json.dumps(index).encode())
            for digest, data in self.blobs.items():
                put("blobs/sha256/" + digest[7:], data)
        return path


BASE = layer({"hello": b"hello\n"})
bad = []


def check(what, ok, seen=""):
    print(("ok    " if ok else "WRONG ") + what + ("" if ok else ": " + str(seen).strip()[:300]))
    if not ok:
        bad.append(what)


pin = "repro/pinned@sha256:" + "c" * 64
layout = Layout()
image = layout.image([BASE], "docker.io/" + pin)
code, text = mica("load", layout.save([image]))
code, text = mica("inspect", pin)
check(
    "oci archive: a wrong digest in ref.name names no image",
    code != 0,
    "`mica inspect {}` finds an image with digest {}".format(pin, image["digest"]),
)

path = os.path.join(WORK, "docker.tar")
config = json.dumps(
    {
        "architecture": "amd64",
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [sha(BASE)]},
    }
).encode()
pin = "repro/saved@sha256:" + "d" * 64
with tarfile.open(path, "w") as tar:
    for name, data in [
        ("c.json", config),
        ("l.tar", BASE),
        (
            "manifest.json",
            json.dumps([{"Config": "c.json", "RepoTags": [pin], "Layers": ["l.tar"]}]).encode(),
        ),
    ]:
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
mica("load", path)
code, text = mica("inspect", pin)
check(
    "docker archive: a wrong digest in RepoTags names no image",
    code != 0,
    f"`mica inspect {pin}` finds an image",
)

pin = "repro/option@sha256:" + "e" * 64
layout = Layout()
code, text = mica("load", layout.save([layout.image([BASE])]), "--name", pin)
code, text = mica("inspect", pin)
check(
    "load --name with a wrong digest names no image",
    code != 0,
    f"`mica inspect {pin}` finds an image",
)

sys.exit(1 if bad else 0)
