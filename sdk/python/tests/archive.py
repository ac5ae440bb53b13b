"""An image that holds one file, as `docker save` writes it."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile


def one_file(name: str, data: bytes) -> io.BytesIO:
    """The archive."""
    layer = _tar({name: data})
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
