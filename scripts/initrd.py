#!/usr/bin/env python3
"""Packs an initrd around one static binary, without root.

    initrd.py BINARY [DIRECTORY] > initrd.cpio

The archive holds /init (the binary) and the node /dev/console, which the kernel
opens as PID 1's standard streams. Files of DIRECTORY, if given, go below /files
in name order. Format: "newc" cpio (kernel, Documentation/driver-api/early-userspace/
buffer-format.rst); a device node needs privileges on disk, but not in here.
"""

import stat
import sys
from pathlib import Path


class Archive:
    """A newc archive; everything in it is owned by root and dated 1970."""

    def __init__(self, out):
        self.out = out
        self.inode = 0

    def entry(self, name, mode, data=b"", device=(0, 0)):
        self.inode += 1
        path = name.encode() + b"\0"
        links = 2 if stat.S_ISDIR(mode) else 1
        fields = (self.inode, mode, 0, 0, links, 0, len(data), 0, 0, *device, len(path), 0)
        header = b"070701" + b"".join(b"%08X" % field for field in fields) + path
        self.out.write(header + bytes(-len(header) % 4))
        self.out.write(data + bytes(-len(data) % 4))

    def close(self):
        self.entry("TRAILER!!!", 0)


def main(binary, directory=None):
    archive = Archive(sys.stdout.buffer)
    archive.entry("dev", stat.S_IFDIR | 0o755)
    archive.entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    archive.entry("init", stat.S_IFREG | 0o755, Path(binary).read_bytes())
    if directory:
        archive.entry("files", stat.S_IFDIR | 0o755)
        for file in sorted(Path(directory).iterdir()):
            archive.entry(f"files/{file.name}", stat.S_IFREG | 0o644, file.read_bytes())
    archive.close()


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
