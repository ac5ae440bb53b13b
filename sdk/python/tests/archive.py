"""Images of one layer, as `docker save` writes them."""

from __future__ import annotations

import hashlib
import io
import json
import pathlib
import tarfile


def one_file(name: str, data: bytes) -> io.BytesIO:
    """One that holds one file."""
    return _image(_tar({name: data}))


def folder(path: pathlib.Path) -> io.BytesIO:
    """One that holds what is in a folder."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as writer:
        writer.add(path, ".")
    return _image(layer.getvalue())


def _image(layer: bytes) -> io.BytesIO:
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [], "Layers": ["layer.tar"]}]
    members = {
        "config.json": json.dumps(config).encode(),
        "layer.tar": layer,
        "manifest.json": json.dumps(manifest).encode(),
    }
    return io.BytesIO(_tar(members))


def _tar(members: dict[str, bytes]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as writer:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            writer.addfile(member, io.BytesIO(data))
    return archive.getvalue()
