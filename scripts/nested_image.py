#!/usr/bin/env python3
"""Packs programs of this machine into an image that runs them.

    nested_image.py OUT.tar [INSIDE=]FILE...

Writes what `docker save` writes: one layer with a static busybox as the userland, each
FILE at its own path or at INSIDE, and every shared library that one of them is linked
with, at the path where the linker finds it. A directory goes in with all it holds.
"""

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

BUSYBOX = Path("/bin/busybox")
NAME = "mica-nested:latest"


def libraries(program):
    """The paths that the dynamic linker would open for a program."""
    with open(program, "rb") as file:
        if file.read(4) != b"\x7fELF":
            return set()
    listing = subprocess.run(
        ["env", "-u", "LD_PRELOAD", "ldd", program], capture_output=True, text=True, check=False
    )
    return set(re.findall(r"(/\S+) \(0x", listing.stdout))


class Layer:
    """An archive in memory: every entry is root's and dated 1970."""

    def __init__(self):
        self.buffer = io.BytesIO()
        self.archive = tarfile.open(fileobj=self.buffer, mode="w")  # noqa: SIM115 (in memory)
        self.known = set()

    def entry(self, path, kind, mode, data=b"", target=""):
        path = str(path).lstrip("/")
        if path in self.known:
            return
        self.known.add(path)
        info = tarfile.TarInfo(path)
        info.type, info.mode, info.size, info.linkname = kind, mode, len(data), target
        self.archive.addfile(info, io.BytesIO(data))

    def file(self, inside, source):
        if source.is_dir():
            for item in sorted(source.iterdir()):
                self.file(inside / item.name, item)
            return
        for library in sorted(libraries(source)):
            self.entry(library, tarfile.REGTYPE, 0o755, Path(library).read_bytes())
        mode = 0o755 if source.stat().st_mode & 0o111 else 0o644
        self.entry(inside, tarfile.REGTYPE, mode, source.read_bytes())

    def bytes(self):
        self.archive.close()
        return self.buffer.getvalue()


def layer(files):
    out = Layer()
    # The checkout may be below /root, and a test reads it as another user.
    for directory, mode in [("tmp", 0o1777), ("root", 0o755), ("etc", 0o755), ("bin", 0o755)]:
        out.entry(directory, tarfile.DIRTYPE, mode)
    out.entry("etc/passwd", tarfile.REGTYPE, 0o644, b"root:x:0:0:root:/root:/bin/sh\n")
    out.entry("etc/group", tarfile.REGTYPE, 0o644, b"root:x:0:\n")
    for inside, source in files:
        out.file(Path(inside), Path(source))
    out.file(Path("bin/busybox"), BUSYBOX)
    applets = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True)
    for applet in applets.stdout.split():
        out.entry(f"bin/{applet}", tarfile.SYMTYPE, 0o777, target="busybox")
    return out.bytes()


def main(output, *words):
    pairs = [word.rsplit("=", 1) if "=" in word else (word, word) for word in words]
    data = layer(pairs)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "WorkingDir": "/root"},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(data).hexdigest()]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"]}]
    with tarfile.open(output, "w") as archive:
        for name, content in [
            ("layer.tar", data),
            ("config.json", json.dumps(config).encode()),
            ("manifest.json", json.dumps(manifest).encode()),
        ]:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
