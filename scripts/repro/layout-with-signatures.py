#!/usr/bin/env python3
"""An OCI layout with an image and, beside it, its signature or SBOM as an artifact (what `oras cp -r`,
`cosign save`, `regctl image export --referrers` write): the image must load, the artifact be passed over."""

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


for title, notes, kind in [
    ("untagged referrer with artifactType", None, "application/vnd.oci.empty.v1+json"),
    (
        "signature under a tag of its own",
        {"org.opencontainers.image.ref.name": "sha256-1.sig"},
        "application/vnd.oci.image.config.v1+json+x",
    ),
    (
        "referrer noted by cosign",
        {"kind": "dev.cosignproject.cosign/sigs"},
        "application/vnd.oci.empty.v1+json",
    ),
]:
    layout = Layout()
    image = layout.image([BASE], "repro/signed:1")
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "artifactType": "application/vnd.example.signature",
        "config": layout.add(b"{}", kind),
        "layers": [layout.add(b'{"s":1}', "application/json")],
        "subject": {key: image[key] for key in ("mediaType", "digest", "size")},
    }
    artifact = layout.add(
        json.dumps(manifest).encode(), manifest["mediaType"], artifactType=manifest["artifactType"]
    )
    if notes:
        artifact["annotations"] = notes
    code, text = mica("load", layout.save([image, artifact]))
    check(title, code == 0, text)

# The same inside an index that a tag names: an artifact without a platform before the image.
layout = Layout()
image = layout.image([BASE])
manifest = {
    "schemaVersion": 2,
    "mediaType": "application/vnd.oci.image.manifest.v1+json",
    "artifactType": "application/vnd.example.sbom",
    "config": layout.add(b"{}", "application/vnd.oci.empty.v1+json"),
    "layers": [layout.add(b"{}", "application/json")],
}
artifact = layout.add(json.dumps(manifest).encode(), manifest["mediaType"])
index = {
    "schemaVersion": 2,
    "mediaType": "application/vnd.oci.image.index.v1+json",
    "manifests": [artifact, image],
}
entry = layout.add(
    json.dumps(index).encode(),
    index["mediaType"],
    annotations={"org.opencontainers.image.ref.name": "repro/mixed:1"},
)
code, text = mica("load", layout.save([entry]))
check("an index with an artifact before the image", code == 0, text)

sys.exit(1 if bad else 0)
