"""Filesystems to work in: a tmpfs, ours, the kernel's overlay, and peers behind FUSE, all over tmpfs.

Each is mounted in a directory of its own, and empty. Needs root; libfuse's example also
libfuse3-dev and a C compiler, and fuse-overlayfs its package.
"""

import contextlib
import gzip
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.mica import binary

URING = pathlib.Path("/sys/module/fuse/parameters/enable_uring")
EXAMPLE = pathlib.Path("/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c")


@dataclass
class Place:
    """A mounted filesystem."""

    path: pathlib.Path
    server: int | None = None  # the process that serves it, where that is not the kernel
    holds_files: bool = False  # the server's memory has the files; others' are in a tmpfs below


@contextlib.contextmanager
def mounted(place: pathlib.Path) -> Iterator[pathlib.Path]:
    while not os.path.ismount(place):
        time.sleep(0.005)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@contextlib.contextmanager
def tmpfs(place: pathlib.Path) -> Iterator[Place]:
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
    with mounted(place):
        yield Place(place)


@contextlib.contextmanager
def memfs(place: pathlib.Path, cache: str = "always", uring: bool = False) -> Iterator[Place]:
    place.mkdir()
    with contextlib.ExitStack() as stack:
        with offered(uring):
            command = [binary(), "memfs", "--cache", cache, place]
            server = stack.enter_context(subprocess.Popen(command))
            stack.enter_context(mounted(place))
        yield Place(place, server.pid, holds_files=True)


def memfs_over_uring(place: pathlib.Path) -> contextlib.AbstractContextManager[Place]:
    return memfs(place, uring=True)


@contextlib.contextmanager
def offered(uring: bool) -> Iterator[None]:
    """Lets the kernel offer io_uring to what is mounted meanwhile, or not."""
    if not URING.exists():
        yield
        return
    before = URING.read_text()
    URING.write_text("Y" if uring else "N")
    try:
        yield
    finally:
        URING.write_text(before)


@contextlib.contextmanager
def layers(place: pathlib.Path) -> Iterator[str]:
    """Options of an overlay: an empty lower directory, and an upper one, in a tmpfs of their own."""
    with tmpfs(place.with_name(f"{place.name}-layers")) as below:
        for name in ("lower", "upper", "work"):
            (below.path / name).mkdir()
        place.mkdir()
        yield ",".join(f"{name}dir={below.path / name}" for name in ("lower", "upper", "work"))


@contextlib.contextmanager
def overlay(place: pathlib.Path) -> Iterator[Place]:
    with layers(place) as options:
        subprocess.run(["mount", "-t", "overlay", "none", "-o", options, place], check=True)
        with mounted(place):
            yield Place(place)


@contextlib.contextmanager
def fuse_overlayfs(place: pathlib.Path) -> Iterator[Place]:
    with layers(place) as options:
        command = ["fuse-overlayfs", "-f", "-o", options, place]
        with subprocess.Popen(command) as server, mounted(place):
            yield Place(place, server.pid)


@contextlib.contextmanager
def passthrough(place: pathlib.Path) -> Iterator[Place]:
    """libfuse's example over a tmpfs."""
    peer = built_peer(place.parent)
    with tmpfs(place.with_name(f"{place.name}-below")) as below:
        place.mkdir()
        options = f"writeback,cache=always,timeout=86400,source={below.path},clone_fd"
        with subprocess.Popen([peer, "-f", "-o", options, place]) as server, mounted(place):
            yield Place(place, server.pid)


def has_example() -> bool:
    return EXAMPLE.exists() or EXAMPLE.with_suffix(".c.gz").exists()


def built_peer(directory: pathlib.Path) -> pathlib.Path:
    """libfuse's example, with the machine's libfuse."""
    packed = EXAMPLE.with_suffix(".c.gz")
    source = directory / EXAMPLE.name
    text = EXAMPLE.read_bytes() if EXAMPLE.exists() else gzip.decompress(packed.read_bytes())
    source.write_bytes(text)
    shutil.copy(EXAMPLE.with_name("passthrough_helpers.h"), directory)
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "fuse3"], check=True, capture_output=True, text=True
    )
    peer = directory / "passthrough_ll"
    subprocess.run(["cc", "-O2", "-w", "-o", peer, source, *flags.stdout.split()], check=True)
    return peer


Mounter = Callable[[pathlib.Path], contextlib.AbstractContextManager[Place]]


def peers() -> dict[str, Mounter]:
    """Ours over io_uring, where the kernel has that, and others that are installed."""
    found: dict[str, Mounter] = {"overlay": overlay}
    if URING.exists():
        found = {"mica memfs, io_uring": memfs_over_uring, **found}
    if has_example():
        found["libfuse, passthrough_ll"] = passthrough
    else:
        print("  libfuse3-dev is not installed: without its example", file=sys.stderr)
    if shutil.which("fuse-overlayfs"):
        found["fuse-overlayfs"] = fuse_overlayfs
    else:
        print("  fuse-overlayfs is not installed: without it", file=sys.stderr)
    return found


def resident(process: int, field: str = "VmRSS") -> int:
    """Bytes of memory that a process has; with `VmHWM`, the most that it had."""
    status = pathlib.Path(f"/proc/{process}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def forget_peak(process: int) -> None:
    """Lets `VmHWM` begin anew."""
    pathlib.Path(f"/proc/{process}/clear_refs").write_text("5")


def held(place: pathlib.Path) -> tuple[int, int]:
    """Files below a directory, and their bytes, each once."""
    files = {}
    for directory, _, names in os.walk(place):
        for name in names:
            status = os.lstat(os.path.join(directory, name))
            files[status.st_ino] = status.st_size
    return len(files), sum(files.values())


def cached(place: pathlib.Path) -> int:
    """Bytes of files below a directory that are in the page cache."""
    find = ["find", place, "-xdev", "-type", "f", "-size", "+0", "-print0"]
    names = subprocess.run(find, check=True, capture_output=True).stdout
    count = ["xargs", "-0r", "fincore", "--bytes", "--noheadings", "--raw", "--output", "RES"]
    done = subprocess.run(count, input=names, check=True, capture_output=True)
    return sum(map(int, done.stdout.split()))
