"""OCI layout directories around blobs that exist already."""

import hashlib
import json
import os
import pathlib
import shutil
from dataclasses import dataclass

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
TAG = "latest"
LAYER = "application/vnd.oci.image.layer.v1.tar"


@dataclass
class Blob:
    """A layer's bytes and what a manifest says of them."""

    path: pathlib.Path
    digest: str  # hex SHA-256
    diff_id: str  # hex SHA-256 of the tar inside
    media_type: str


def write(directory: pathlib.Path, blobs: list[Blob]) -> None:
    """An image of `blobs`, bottom to top, as an OCI layout. The blobs are hard links."""
    shutil.rmtree(directory, ignore_errors=True)
    place = directory / "blobs" / "sha256"
    place.mkdir(parents=True)
    layers = []
    for blob in blobs:
        if not (place / blob.digest).exists():
            os.link(blob.path, place / blob.digest)
        layers.append(descriptor(blob.media_type, blob.digest, blob.path.stat().st_size))
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/bin/sh"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{blob.diff_id}" for blob in blobs]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": put(place, CONFIG, config),
        "layers": layers,
    }
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [
            put(place, MANIFEST, manifest)
            | {"annotations": {"org.opencontainers.image.ref.name": TAG}}
        ],
    }
    (directory / "index.json").write_text(json.dumps(index))
    (directory / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))


def descriptor(media_type: str, digest: str, size: int) -> dict:
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}


def put(place: pathlib.Path, media_type: str, value: dict) -> dict:
    """Stores a JSON blob, returns its descriptor."""
    raw = json.dumps(value).encode()
    digest = hashlib.sha256(raw).hexdigest()
    (place / digest).write_bytes(raw)
    return descriptor(media_type, digest, len(raw))


def blobs(directory: pathlib.Path) -> list[Blob]:
    """The layers of a layout's only image, the lowest first."""
    place = directory / "blobs" / "sha256"

    def read(entry: dict) -> dict:
        return json.loads((place / entry["digest"].removeprefix("sha256:")).read_text())

    (manifest,) = map(read, json.loads((directory / "index.json").read_text())["manifests"])
    diff_ids = read(manifest["config"])["rootfs"]["diff_ids"]
    found = []
    for entry, diff_id in zip(manifest["layers"], diff_ids, strict=True):
        digest = entry["digest"].removeprefix("sha256:")
        diff_id = diff_id.removeprefix("sha256:")
        found.append(Blob(place / digest, digest, diff_id, entry["mediaType"]))
    return found
