"""The sample image's upper layers: an application, and changes to what is below.

Between them they hold one of everything that a layer may hold and that
converters are known to lose: each entry below is there for that reason.
"""

import struct
import tarfile
from pathlib import Path

from tarball import TarWriter

USER, GROUP = 1000, 1000
APP = Path(__file__).parent / "app"

ENTRYPOINT = b"""#!/bin/sh
# Set up, then become the command: the usual shape of an image's entry point.
: "${STRATA_DATA:=/app/data}"
export STRATA_DATA
exec "$@"
"""


def file_capability(*numbers):
    """The security.capability value with these permitted and effective (VFS_CAP_REVISION_2)."""
    low = sum(1 << number for number in numbers if number < 32)
    high = sum(1 << (number - 32) for number in numbers if number >= 32)
    return struct.pack("<IIIII", 0x02000001, low, 0, high, 0)


def posix_acl(*entries):
    """A system.posix_acl_* value from (tag, permissions, id) entries (linux/posix_acl_xattr.h)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


ACL_USER_OBJ, ACL_USER, ACL_GROUP_OBJ, ACL_MASK, ACL_OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
NO_ID = 0xFFFFFFFF


def shared_with(user, permissions):
    """rw for the owner, `permissions` for one more user, nothing for others."""
    return posix_acl(
        (ACL_USER_OBJ, 6, NO_ID),
        (ACL_USER, permissions, user),
        (ACL_GROUP_OBJ, 4, NO_ID),
        (ACL_MASK, 6, NO_ID),
        (ACL_OTHER, 0, NO_ID),
    )


class Userland:
    """Files of the layers below, by path without a leading slash."""

    def __init__(self, path):
        self._path = path
        with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as archive:
            self._members = {member.name.removeprefix("./"): member for member in archive}
        #: "python3.11": the name of the interpreter and of its library's directory
        self.python = self._members["usr/bin/python3"].linkname

    def read(self, path):
        member = self._members[path]
        with open(self._path, "rb") as archive:
            archive.seek(member.offset_data)
            return archive.read(member.size)

    def directory(self, path):
        """The path of a directory that is really there: deleting nothing would test nothing."""
        if not self._members[path].isdir():
            raise SystemExit(f"sample image: /{path} is no directory in the userland")
        return path.encode()


def write_application(userland, mtime, out):
    """Layer 3: users, a Python program, its data, and files with special attributes."""
    tar = TarWriter(out, mtime)
    owned = {"uid": USER, "gid": GROUP}

    tar.directory(b"etc")
    tar.file(
        b"etc/passwd",
        userland.read("etc/passwd") + b"strata:x:1000:1000:Strata:/home/strata:/bin/sh\n",
    )
    tar.file(b"etc/group", userland.read("etc/group") + b"strata:x:1000:\ncurators:x:1100:strata\n")
    tar.directory(b"home/strata", mode=0o700, **owned)  # home itself has no entry in this layer
    tar.file(b"home/strata/.profile", b"umask 027\n", **owned)

    tar.directory(b"app")
    tar.file(b"app/entrypoint", ENTRYPOINT, mode=0o755)
    for path in sorted(APP.rglob("*")):
        if "__pycache__" in path.parts:
            continue
        name = b"app/" + str(path.relative_to(APP)).encode()
        if path.is_dir():
            tar.directory(name)
        else:
            tar.file(name, path.read_bytes())

    # Real programs with privileges: they show whether modes and capabilities arrive.
    tar.directory(b"app/bin")
    tar.file(b"app/bin/id-setuid", userland.read("usr/bin/id"), mode=0o4755)
    tar.file(b"app/bin/id-setgid", userland.read("usr/bin/id"), mode=0o2755, gid=1100)
    cap_chown = {"security.capability": file_capability(0)}
    tar.file(b"app/bin/chown-capable", userland.read("usr/bin/chown"), mode=0o755, xattrs=cap_chown)

    tar.directory(b"app/shared", mode=0o2770, uid=USER, gid=1100)
    tar.directory(b"app/drop", mode=0o1777)
    tar.fifo(b"app/run/queue", mode=0o620, **owned)  # app/run has no entry at all
    tar.directory(b"app/dev")
    tar.device(b"app/dev/null", 1, 3, mode=0o666)
    tar.device(b"app/dev/loop0", 7, 0, block=True, mode=0o660)
    tar.device(b"app/dev/far", 259, 1 << 18, mode=0o600)  # a minor number over 16 bits

    # Hard links: one inode, three names, in two directories.
    tar.file(b"app/data/amethyst", b"a quartz, violet\n" * 300, **owned)
    tar.hard_link(b"app/data/citrine", b"app/data/amethyst", **owned)
    tar.hard_link(b"app/shared/quartz", b"app/data/amethyst", **owned)

    tar.symlink(b"app/latest", b"data")
    tar.symlink(b"app/python", b"/usr/bin/python3")
    tar.symlink(b"app/data/up", b"../../etc/hostname")
    tar.symlink(b"app/dangling", b"/nowhere/" + b"far/" * 60 + b"away")
    tar.symlink(b"app/loop", b"loop", xattrs={"trusted.strata": b"on a symlink"})

    tar.directory(b"app/attributes", xattrs={"user.origin": b"sample", "user.empty": b""})
    tar.file(b"app/attributes/binary", b"x", xattrs={"user.bytes": bytes(range(256))})
    tar.file(b"app/attributes/large", b"x", xattrs={"user.large": b"strata" * 500})
    access = {"system.posix_acl_access": shared_with(1100, 6)}
    tar.file(b"app/attributes/acl", b"shared\n", mode=0o660, xattrs=access)
    default = {"system.posix_acl_default": shared_with(1100, 4)}
    tar.directory(b"app/attributes/inherit", mode=0o770, xattrs=default)

    # Names: below "." in byte order, dashes, quotes, newlines, not UTF-8, the longest.
    tar.directory(b"app/routes")
    tar.directory(b"app/routes/(group)")
    tar.file(b"app/routes/(group)/+page.svelte", b"<h1>Minerals</h1>\n")
    names = [
        b"+page.svelte",
        b"+layout.js",
        b"#draft",
        b"$param",
        b"-rf",
        b" padded ",
        b"!",
        b"...",
    ]
    for name in [*names, b"tab\tnew\nline"]:
        tar.file(b"app/routes/" + name, name + b"\n")
    tar.file(b"app/routes/" + "Glimmer·雲母".encode(), b"mica\n")
    tar.file(b"app/routes/caf\xe9", b"Latin-1\n")
    tar.file(b"app/routes/" + b"n" * 255, b"255 bytes\n")
    tar.directory(b"app/many")
    for number in range(1200):  # more than one block of directory entries
        tar.file(b"app/many/sample-%04d.txt" % number, b"%d\n" % number)

    tar.file(b"app/data/empty", b"")
    tar.file(b"app/data/block", b"b" * 4096)
    tar.file(b"app/data/block-and-one", b"c" * 4097)
    tar.file(b"app/data/zeros", bytes(1 << 20))
    segments = [
        (0, b"head".ljust(4096, b".")),
        (40 << 20, b"middle".ljust(8192, b".")),
        ((64 << 20) - 4096, b"tail".rjust(4096, b".")),
    ]
    tar.sparse(b"app/data/survey.img", 64 << 20, segments, **owned)
    tar.file(b"app/data/precise", b"nanoseconds\n", mtime="1700000000.123456789")
    tar.file(b"app/data/old", b"before 1970\n", mtime=-86400)

    # What layer 4 acts on.
    tar.directory(b"app/cache")
    tar.directory(b"app/cache/deep")
    for name in (b"app/cache/stale", b"app/cache/deep/stale", b"app/cache/kept-name"):
        tar.file(name, b"from layer 3\n")
    tar.file(b"app/becomes-directory", b"a file\n")
    tar.directory(b"app/becomes-file")
    tar.file(b"app/becomes-file/inside", b"a file in a directory\n")
    tar.file(b"app/becomes-symlink", b"a file\n")
    tar.symlink(b"app/symlink-becomes-directory", b"data")
    tar.file(b"app/gone", b"deleted by layer 4\n")
    tar.file(b"app/reborn", b"old\n")
    tar.directory(b"app/reborn-directory")
    tar.file(b"app/reborn-directory/old", b"old\n")
    tar.directory(b"app/permissions", mode=0o700)
    tar.file(b"app/permissions/inside", b"keeps its bytes\n", mode=0o600)
    tar.close()


def write_changes(userland, mtime, out):
    """Layer 4: deletes, replaces and re-links what the layers below hold."""
    tar = TarWriter(out, mtime)

    # Deletions: in the userland's layer, in Python's, in the application's.
    tar.whiteout(userland.directory("usr/share/pixmaps"))
    tar.whiteout(userland.directory(f"usr/lib/{userland.python}/pydoc_data"))
    tar.whiteout(b"app/gone")

    # An opaque directory, its marker after one new entry and before another.
    tar.directory(b"app/cache", mode=0o750, uid=USER, gid=GROUP)
    tar.file(b"app/cache/kept-name", b"from layer 4\n")
    tar.opaque(b"app/cache")
    tar.file(b"app/cache/fresh", b"from layer 4\n")
    tar.directory(b"app/cache/deep")

    # One kind of file becomes another.
    tar.directory(b"app/becomes-directory")
    tar.file(b"app/becomes-directory/inside", b"a file in a directory\n")
    tar.file(b"app/becomes-file", b"a file\n")
    tar.symlink(b"app/becomes-symlink", b"becomes-file")
    tar.directory(b"app/symlink-becomes-directory")
    tar.file(b"app/symlink-becomes-directory/inside", b"not in data\n")

    # Deleted and made anew in one layer: a whiteout speaks of lower layers only.
    tar.file(b"app/reborn", b"new\n")
    tar.whiteout(b"app/reborn")
    tar.whiteout(b"app/reborn-directory")
    tar.directory(b"app/reborn-directory")
    tar.file(b"app/reborn-directory/new", b"new\n")

    # Attributes change, content does not.
    reviewed = {"user.reviewed": b"yes"}
    tar.directory(b"app/permissions", mode=0o755, uid=USER, gid=1100, xattrs=reviewed)

    # Hard links: within the layer, the target after its link; and to files below.
    tar.file(b"app/bin/strata", b'#!/bin/sh\nexec python3 -m strata "$@"\n', mode=0o755)
    tar.hard_link(b"app/bin/minerals", b"app/bin/strata", mode=0o755)
    tar.hard_link(b"app/data/amethyst-again", b"app/data/amethyst", uid=USER, gid=GROUP)
    tar.hard_link(b"app/bin/os-release", b"usr/lib/os-release")

    tar.file(b"etc/motd", b"Mica splits into thin, transparent sheets.\n")
    # Once only: Podman 4.3 loads no layer that has a path twice. layer_rules.rs has such.
    tar.file(b"app/VERSION", b"1.0\n")
    tar.close()
