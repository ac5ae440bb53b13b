#!/usr/bin/env python3
"""Assembles the sample image as an OCI image layout.

    assemble.py BASE.tar PYTHON.tar OUTPUT-DIRECTORY

BASE.tar is a minimal userland, PYTHON.tar the same with python3 installed. The
same inputs give the same bytes. Times are SOURCE_DATE_EPOCH where nothing else
decides.
"""

import hashlib
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import layers
from difference import write_difference

LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
MEMBER = 1 << 20  # bytes of tar in each gzip member of a multi-member layer


def digest_of(path):
    with open(path, "rb") as stream:
        return "sha256:" + hashlib.file_digest(stream, "sha256").hexdigest()


def run(command, **streams):
    subprocess.run(command, check=True, **streams)


def gzip_once(tar, out):
    """One member, as `docker build` writes."""
    run(["gzip", "-n", "-6"], stdin=tar, stdout=out)


def gzip_members(tar, out):
    """Many members one after the other, as eStargz and parallel compressors write."""
    while piece := tar.read(MEMBER):
        run(["gzip", "-n", "-6"], input=piece, stdout=out)


def zstd_frames(tar, out):
    """Two frames with a skippable one between, as zstd:chunked writes."""
    half = os.fstat(tar.fileno()).st_size // 2
    run(["zstd", "-q", "-9"], input=tar.read(half), stdout=out)
    note = b"skipped by decoders"
    out.write(b"\x50\x2a\x4d\x18" + len(note).to_bytes(4, "little") + note)
    out.flush()
    run(["zstd", "-q", "-9"], input=tar.read(), stdout=out)


class Layout:
    """An OCI image layout directory (image-spec, image-layout.md)."""

    def __init__(self, path):
        self.path = Path(path)
        self.blobs = self.path / "blobs" / "sha256"
        self.blobs.mkdir(parents=True)
        (self.path / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')

    def adopt(self, file, media_type):
        """Moves a finished file in; returns its descriptor."""
        digest = digest_of(file)
        size = file.stat().st_size
        file.rename(self.blobs / digest.removeprefix("sha256:"))
        return {"mediaType": media_type, "digest": digest, "size": size}

    def json(self, document, media_type):
        file = self.path / "document"
        file.write_text(json.dumps(document, separators=(",", ":")))
        return self.adopt(file, media_type)


def main(base, python, output):
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    created = datetime.fromtimestamp(epoch, UTC).isoformat().replace("+00:00", "Z")
    layout = Layout(output)
    userland = layers.Userland(python)

    def copy_base(out):
        with open(base, "rb") as source:
            while data := source.read(1 << 20):
                out.write(data)

    def copy_python(out):
        write_difference(base, python, out, epoch)

    recipe = [
        ("a minimal userland", copy_base, gzip_once, "+gzip"),
        ("python3", copy_python, zstd_frames, "+zstd"),
        (
            "the application",
            partial(layers.write_application, userland, epoch),
            gzip_members,
            "+gzip",
        ),
        (
            "changes to all of them",
            partial(layers.write_changes, userland, epoch),
            zstd_frames,
            "+zstd",
        ),
    ]
    descriptors, diff_ids, history = [], [], []
    for name, write, compress, suffix in recipe:
        tar_path, blob_path = layout.path / "layer.tar", layout.path / "layer.blob"
        with open(tar_path, "wb") as tar:
            write(tar)
        diff_ids.append(digest_of(tar_path))
        with open(tar_path, "rb") as tar, open(blob_path, "wb") as blob:
            compress(tar, blob)
        size = tar_path.stat().st_size
        tar_path.unlink()
        descriptors.append(layout.adopt(blob_path, LAYER_TYPE + suffix))
        history.append({"created": created, "created_by": f"sample: {name}"})
        packed = descriptors[-1]["size"]
        print(f"  layer {len(diff_ids)}: {name}, {size >> 10} KiB, {suffix[1:]} {packed >> 10} KiB")
    user = {"created": created, "created_by": "sample: USER strata", "empty_layer": True}
    history.insert(3, user)

    config = {
        "created": created,
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "User": "strata",
            "Env": [
                "PATH=/app/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "LANG=C.UTF-8",
                "PYTHONPATH=/app",
                "STRATA_DATA=/app/data",
            ],
            "Entrypoint": ["/app/entrypoint"],
            "Cmd": ["python3", "-m", "strata"],
            "WorkingDir": "/app",
            "StopSignal": "SIGINT",
            "Labels": {"org.opencontainers.image.title": "mica-sample"},
        },
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "history": history,
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": layout.json(config, "application/vnd.oci.image.config.v1+json"),
        "layers": descriptors,
    }
    entry = layout.json(manifest, manifest["mediaType"])
    entry["platform"] = {"architecture": "amd64", "os": "linux"}
    entry["annotations"] = {"org.opencontainers.image.ref.name": "latest"}
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry],
    }
    (layout.path / "index.json").write_text(json.dumps(index, separators=(",", ":")))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
