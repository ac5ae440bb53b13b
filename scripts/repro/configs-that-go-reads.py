#!/usr/bin/env python3
"""Image configurations that every Go tool reads (Docker, containerd, Podman; tried with podman load 4.3): a field
that is null inside a map or a list, or a rootfs without `type`. Real ones: images of nix2container before
June 2023 and Talos's installer have no rootfs.type."""

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


def config_field(name, value):
    return lambda config: config["config"].update({name: value})


def no_type(config):
    del config["rootfs"]["type"]


for title, change in [
    ("rootfs without type", no_type),
    ("Volumes: {path: null}", config_field("Volumes", {"/data": None})),
    ("ExposedPorts: {port: null}", config_field("ExposedPorts", {"80/tcp": None})),
    ("Labels: {name: null}", config_field("Labels", {"a": None})),
    ("Env: [null]", config_field("Env", ["A=1", None])),
]:
    layout = Layout()
    code, text = mica("load", layout.save([layout.image([BASE], "repro/config:1", change)]))
    check(title, code == 0, text)
# Docker takes a string for a list here (its strslice); Podman does not.
layout = Layout()
code, text = mica(
    "load", layout.save([layout.image([BASE], "repro/config:2", config_field("Cmd", "sh"))])
)
check("Cmd: a string, as Docker takes it", code == 0, text)
layout = Layout()
image = layout.image([BASE], "repro/platform:1")
for title, platform in [
    ("platform: {}", {}),
    ("platform with empty strings", {"os": "", "architecture": ""}),
    ("platform without os", {"architecture": "amd64"}),
]:
    code, text = mica("load", layout.save([dict(image, platform=platform)]))
    check("a lone entry with " + title, code == 0, text)
layout = Layout()
image = dict(layout.image([BASE]), platform={"os": "linux", "architecture": "amd64"})
other = dict(layout.add(b"{}", "application/vnd.oci.image.manifest.v1+json"), platform={})
index = {
    "schemaVersion": 2,
    "mediaType": "application/vnd.oci.image.index.v1+json",
    "manifests": [other, image],
}
entry = layout.add(
    json.dumps(index).encode(),
    index["mediaType"],
    annotations={"org.opencontainers.image.ref.name": "repro/neighbour:1"},
)
code, text = mica("load", layout.save([entry]))
check("an index whose other entry has platform {}", code == 0, text)

sys.exit(1 if bad else 0)
