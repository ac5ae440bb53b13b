"""Hostile files of snapshots, imported by root."""

import hashlib
import json
import struct

import disks
import oci
from attempts import attempt
from images import ESCAPES
from world import MEBIBYTE, exists

MAGIC = b"micabox snapshot 1\n"


def exported(world, change=lambda head: None, disk=None, head_length=None):
    """A file with the head that an export would have, changed, and a right digest. The disk is
    sound unless another one is given."""
    if disk is None:
        disk = disks.make(world, name="snapshot.ext4").read_bytes()
    (image,) = (world.store / "images" / "sha256").iterdir()
    digest = f"sha256:{image.name}"
    head = {
        "snapshot": {
            "name": "evil",
            "image": {"reference": "docker.io/library/box:latest", "digest": digest},
            "sandbox": "box",
            "created": 1_700_000_000,
            "size": 16 * MEBIBYTE,
        },
        "runs": [[0, len(disk)]],
    }
    change(head)
    text = json.dumps(head).encode()
    length = len(text) if head_length is None else head_length
    file = MAGIC + struct.pack("<I", length) + text + disk
    path = world.path("evil.snapshot")
    path.write_bytes(file + hashlib.sha256(file).digest())
    return path


def nothing_imported(world):
    """Checks that no part of a snapshot is left."""
    left = list((world.store / "sandboxes").glob("snapshot-*"))
    assert not left, f"{left}"


@attempt(
    "snapshot file",
    "escape sequences in the names of its sandbox and image",
    "refused, or shown as text",
    "names are checked; one filter where text leaves mica",
)
def escape_sequences_in_a_snapshot(world):
    oci.load_box(world)

    def change(head):
        head["snapshot"]["sandbox"] = ESCAPES
        head["snapshot"]["image"]["reference"] = ESCAPES

    path = exported(world, change)
    world.mica("snapshot", "import", path, tty=True).harmless()
    world.mica("snapshot", "ls", tty=True).harmless()


@attempt(
    "snapshot file",
    "a name that leads out of the store",
    "refused; nothing is written",
    "names are letters, digits, `_`, `.` and `-`",
)
def a_name_that_leads_out(world):
    oci.load_box(world)
    for name in ("../../escaped", "/escaped", "..", ""):
        path = exported(world, lambda head, name=name: head["snapshot"].update(name=name))
        world.mica("snapshot", "import", path).harmless().refused()
    assert not exists(world.path("escaped"))
    nothing_imported(world)


@attempt(
    "snapshot file",
    "a root disk of the host's that it names",
    "not opened; a sandbox is not started from it",
    "only the user names files of the host's",
)
def a_root_disk_of_the_hosts(world):
    oci.load_box(world)
    disk = world.path("private.ext4")
    disk.write_bytes(bytes(MEBIBYTE))
    status = disk.stat()

    def change(head):
        head["snapshot"]["image"] = {"reference": str(disk), "digest": ""}
        head["snapshot"]["root_disk"] = {
            "path": str(disk),
            "format": "ext4",
            "uuid": [0] * 16,
            "size": status.st_size,
            "modified": [int(status.st_mtime), status.st_mtime_ns % 1_000_000_000],
            "in_place": False,
        }

    world.mica("snapshot", "import", exported(world, change)).harmless()
    before = disk.stat().st_atime_ns
    world.mica("run", "--rm", "--from", "evil", "true").harmless().refused()
    assert disk.stat().st_atime_ns == before, "it was read"


@attempt(
    "snapshot file",
    "runs that overlap or lie outside, a disk of 2^63 bytes, a head of 4 GiB, a wrong digest",
    "refused with less than 200 MiB of memory; nothing is left",
    "every number is checked against what was read",
)
def wrong_numbers(world):
    oci.load_box(world)

    def runs(*pairs):
        return lambda head: head.update(runs=[list(pair) for pair in pairs])

    def size(length):
        return lambda head: head["snapshot"].update(size=length)

    files = [
        {"change": runs((0, 8192), (4096, 4096)), "disk": bytes(12288)},
        {"change": runs((16 * MEBIBYTE, 4096)), "disk": bytes(4096)},
        {"change": runs((1 << 63, 1 << 63)), "disk": b""},
        {"change": size(1 << 63), "disk": b""},
        {"change": size(15 << 40), "disk": b""},
        {"head_length": (1 << 32) - 1, "disk": b""},
        {"head_length": 200 << 20, "disk": b""},
    ]
    for options in files:
        path = exported(world, **options)
        world.mica("snapshot", "import", path).harmless().refused().within(200)
        nothing_imported(world)
    path = exported(world)
    file = bytearray(path.read_bytes())
    file[-1] ^= 1
    path.write_bytes(file)
    world.mica("snapshot", "import", path).harmless().refused("digest")
    nothing_imported(world)
