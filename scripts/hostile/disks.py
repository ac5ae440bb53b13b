"""Hostile ext4 filesystems, made by e2fsprogs and damaged with debugfs."""

import os
import stat
import struct
import subprocess

from attempts import attempt
from images import ESCAPES
from world import MEBIBYTE, exists

BLOCK = 4096


def make(world, *commands, size="16M", features="^metadata_csum", name="disk.ext4"):
    """A filesystem on which debugfs has done these."""
    path = world.path(name)
    subprocess.run(
        ["mke2fs", "-q", "-t", "ext4", "-b", str(BLOCK), "-O", features, path, size],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    debugfs(path, *commands)
    return path


def debugfs(path, *commands):
    """Has debugfs do these."""
    subprocess.run(
        ["debugfs", "-w", "-f", "-", path],
        input="\n".join(commands).encode() + b"\n",
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def plain_file(world, contents=b"#!/bin/sh\n"):
    """A file to put into a filesystem."""
    path = world.path("plain")
    path.write_bytes(contents)
    return path


def set_id_disk(world):
    """A disk with a set-user-ID file of root's, and a directory that hands its group on."""
    return make(
        world,
        f"write {plain_file(world)} evil",
        "sif evil mode 0106755",
        "sif evil uid 0",
        "mkdir d",
        "sif d mode 0046777",
        "cd d",
        f"write {world.path('plain')} evil",
        "sif evil mode 0106755",
    )


def no_privileges(path):
    """Nothing below a path has a set-id bit or a capability, or is a device."""
    for place in [path, *path.rglob("*")]:
        status = place.lstat()
        assert not status.st_mode & (stat.S_ISUID | stat.S_ISGID), f"{place}: set-id"
        assert stat.S_IFMT(status.st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK), place
        capability = "security.capability"
        assert capability not in os.listxattr(place, follow_symlinks=False), place


@attempt(
    "disk",
    "a set-user-ID program of root's, copied out by root",
    "an ordinary file",
    "one unpacker, which keeps no set-id bit, device or capability",
)
def a_set_id_program(world):
    disk = set_id_disk(world)
    for place in ("evil", "d"):
        world.mica("ext4", "cp", f"{disk}:/{place}", world.path(f"out-{place}")).worked()
        no_privileges(world.path(f"out-{place}"))


@attempt(
    "disk",
    "links in a tree that lead to the host's files, copied onto them",
    "links or refusals; the host's files are as they were",
    "no link is followed on the way to a place",
)
def links_to_the_host(world):
    host = world.path("host")
    host.mkdir()
    (host / "file").write_text("mine")
    disk = make(
        world,
        "mkdir tree",
        "cd tree",
        f"symlink link {host}",
        f"symlink file {host}/file",
        "symlink up ../../..",
    )
    out = world.path("out")
    for _ in range(2):
        world.mica("ext4", "cp", f"{disk}:/tree", out)
    assert (host / "file").read_text() == "mine"
    assert [path.name for path in host.iterdir()] == ["file"]
    # An existing link does not lead out either.
    other = make(world, "mkdir tree", "cd tree", "mkdir link", name="other.ext4")
    debugfs(other, "cd tree/link", f"write {plain_file(world)} file")
    world.mica("ext4", "cp", f"{other}:/tree", out)
    assert (host / "file").read_text() == "mine"


@attempt(
    "disk",
    "a directory inside itself, and 24 times the same one in each of 24 levels",
    "refused at the second visit",
    "no directory is visited twice",
)
def directories_in_a_circle(world):
    circle = make(world, "mkdir d", "mkdir d/e", "ln d d/e/again", name="circle.ext4")
    steps = []
    for level in range(24):
        steps += [f"mkdir l{level}"]
    for level in range(23):
        steps += [f"ln l{level + 1} l{level}/{index}" for index in range(24)]
    tree = make(world, *steps, name="tree.ext4")
    for disk, place in ((circle, "/d"), (tree, "/l0")):
        out = world.path(f"out-{disk.name}")
        world.mica("ext4", "cp", f"{disk}:{place}", out, seconds=40).refused().within(300)
        found = subprocess.run(["find", out], capture_output=True, check=False).stdout
        assert found.count(b"\n") < 1000, "they were followed"


@attempt(
    "disk",
    "a directory of 4 GiB, every block of which is the same one",
    "refused with less than 300 MiB of memory",
    "directories have no more bytes than their filesystem",
)
def a_directory_of_one_block(world):
    disk = make(world, "mkdir d", features="^dir_index,^resize_inode,^metadata_csum,^64bit,^extent")
    listing = subprocess.run(
        ["debugfs", "-R", "stat /d", disk], capture_output=True, text=True, check=True
    )
    inode = int(listing.stdout.split("Inode:")[1].split()[0])
    image = bytearray(disk.read_bytes())
    last = len(image) // BLOCK - 1
    entries, single, double, triple = last - 10, last - 11, last - 12, last - 13
    count = BLOCK // 12
    block = b""
    for number in range(count):
        length = 12 if number < count - 1 else BLOCK - 12 * (count - 1)
        entry = struct.pack("<IHBB", 12, length, 3, 1) + b"%03x" % number
        block += entry.ljust(length, b"\0")
    for place, contents in (
        (entries, block),
        (single, struct.pack("<I", entries) * (BLOCK // 4)),
        (double, struct.pack("<I", single) * (BLOCK // 4)),
        (triple, struct.pack("<I", double) * (BLOCK // 4)),
    ):
        image[place * BLOCK : (place + 1) * BLOCK] = contents
    disk.write_bytes(image)
    fields = [f"sif <{inode}> block[{index}] {entries}" for index in range(12)]
    fields += [
        f"sif <{inode}> flags 0",
        f"sif <{inode}> block[IND] {single}",
        f"sif <{inode}> block[DIND] {double}",
        f"sif <{inode}> block[TIND] {triple}",
        f"sif <{inode}> size {4 << 30}",
    ]
    debugfs(disk, *fields)
    for command in (("ls", disk, "/d"), ("cp", f"{disk}:/d", world.path("out"))):
        world.mica("ext4", *command, seconds=40).refused().within(300)


@attempt(
    "disk",
    "a file of 500 GB on a disk of 16 MB, copied out",
    "a file of 500 GB that takes a few kilobytes",
    "holes stay holes",
)
def a_file_of_holes(world):
    large = world.path("large")
    with open(large, "wb") as file:
        file.write(b"begin")
        file.truncate(500_000_000_000)
    disk = make(world, f"write {plain_file(world)} large")
    debugfs(disk, "sif large size 500000000000")
    out = world.path("out")
    world.mica("ext4", "cp", f"{disk}:/large", out, seconds=30).worked()
    assert out.stat().st_size == 500_000_000_000
    assert out.stat().st_blocks * 512 < MEBIBYTE, out.stat().st_blocks


@attempt(
    "disk",
    "escape sequences in names, links and errors",
    "shown as text",
    "one filter where text leaves mica",
)
def escape_sequences_on_a_disk(world):
    name = ESCAPES.encode().replace(b"\x1b]0;taken\x07", b"\x1b[5m")
    disk = make(world, "mkdir d", "cd d", f"write {plain_file(world)} xxxxxxxxxxxxxxxx")
    image = disk.read_bytes()
    assert image.count(b"xxxxxxxxxxxxxxxx") >= 1
    disk.write_bytes(image.replace(b"xxxxxxxxxxxxxxxx", name[:16].ljust(16, b"\x9b")))
    for command in (
        ("ls", disk, "/d"),
        ("check", disk),
        ("cat", disk, f"/d/{ESCAPES}"),
        ("cp", f"{disk}:/d", world.path("out")),
    ):
        world.mica("ext4", *command, tty=True).harmless()


@attempt(
    "disk",
    "60 disks with a damaged superblock, inode table or directory",
    "read, or refused; none takes 300 MiB or 20 seconds",
    "every length, count and block is checked (`fuzz/`, `ext4_*`)",
)
def damaged_disks(world):
    sound = set_id_disk(world).read_bytes()
    disk = world.path("damaged.ext4")
    state = 1
    for number in range(60):
        image = bytearray(sound)
        for _ in range(6):
            state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
            # The superblock, or the first blocks, which have tables and directories.
            at = 1024 + (state >> 33) % (1024 if number % 2 else 200 * BLOCK)
            image[at] = (state >> 20) & 0xFF
        disk.write_bytes(image)
        command = ("check", disk) if number % 3 else ("ls", disk)
        finished = world.mica("ext4", *command, seconds=20).harmless().within(300)
        # Sound, damaged, refused; not a panic (101) and no signal.
        assert 0 <= finished.code < 101, finished.text[-500:]
    assert not exists(world.path("out"))
