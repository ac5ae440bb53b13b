"""The filesystem workloads of a sandbox on a mounted image: by the kernel, by `mica mount` over FUSE, and by
fuse-overlayfs over its unpacked layers.

    python3 -m bench.mounted [--quick] [--iterations N] [--only NAME]...

Each workload gets a fresh mount of each, which is the root of the process that runs it; they take turns, so
that a slow minute of the machine hits all. Needs root, and fuse-overlayfs for that one.
"""

import argparse
import contextlib
import functools
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from bench import layout, measure, mica, report, sample

ITERATIONS = 5
LIMIT = 300.0  # seconds for one cell
QUICK = [
    "metadata_scan_stdlib",
    "read_all_py_stdlib",
    "negative_lookup",
    "rootfs_create_1k",
    "cold_read_all",
    "copy_up_200",
]
KERNEL, OURS, PEER = "kernel", "mica mount", "fuse-overlayfs"

# Makes the mounted tree the root of the workload. The kernel's filesystems are this machine's.
ENTER = """
for name in proc sys dev; do mount --rbind "/$name" "$0/$name"; done
exec chroot "$0" /usr/bin/python3 - "$@"
"""

Mounter = Callable[[pathlib.Path], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def by_mica(image: str, what: str, place: pathlib.Path) -> Iterator[None]:
    def run(*words: str | pathlib.Path) -> None:
        subprocess.run([mica.binary(), *words], check=True, env=mica.environment())

    run("mount", "--rw", "--with", what, image, place)
    try:
        yield
    finally:
        run("umount", place)


@contextlib.contextmanager
def by_fuse_overlayfs(layers: list[pathlib.Path], place: pathlib.Path) -> Iterator[None]:
    above = place.with_name(f"{place.name}-above")
    above.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", above], check=True)
    try:
        for name in ("upper", "work"):
            (above / name).mkdir()
        lowers = ":".join(map(str, reversed(layers)))
        options = f"lowerdir={lowers},upperdir={above / 'upper'},workdir={above / 'work'}"
        # It returns once it is mounted, and ends when it is unmounted.
        subprocess.run(["fuse-overlayfs", "-o", options, place], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", place], check=True)
    finally:
        subprocess.run(["umount", "--lazy", above], check=True)
        above.rmdir()


def unpacked(directory: pathlib.Path) -> list[pathlib.Path]:
    """The sample image's layers as directories in the overlay's terms, the lowest first. Each is the upper of a
    kernel's overlay over those below, since a layer may link to files of lower ones.
    """
    layers: list[pathlib.Path] = []
    place, work, empty = (directory / name for name in ("unpacking", "work", "empty"))
    for path in (place, empty):
        path.mkdir()
    for number, blob in enumerate(layout.blobs(sample.directory())):
        layer = directory / f"layer{number}"
        layer.mkdir()
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        lowers = ":".join(map(str, [*reversed(layers), empty]))
        options = f"lowerdir={lowers},upperdir={layer},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "none", "-o", options, place], check=True)
        try:
            apply(blob.path, place)
        finally:
            subprocess.run(["umount", place], check=True)
        layers.append(layer)
    return layers


def apply(archive: pathlib.Path, tree: pathlib.Path) -> None:
    """Changes a tree as a layer says, deletions first, also of a directory in whose place is a file."""
    words = ["tar", "--quoting-style=literal", "-tf", archive]
    listed = subprocess.run(words, check=True, capture_output=True)
    for name in map(os.fsdecode, listed.stdout.splitlines()):
        path = tree / name
        if path.name == ".wh..wh..opq":
            gone = [*path.parent.iterdir()] if path.parent.is_dir() else []
        elif path.name.startswith(".wh."):
            gone = [path.with_name(path.name.removeprefix(".wh."))]
        elif not name.endswith("/") and path.is_dir() and not path.is_symlink():
            gone = [path]
        else:
            continue
        subprocess.run(["rm", "-rf", *gone], check=True)
    words = ["tar", "--xattrs", "--xattrs-include=*", "--numeric-owner", "--exclude=.wh.*"]
    words += ["--warning=no-timestamp", "-xpf"]
    subprocess.run([*words, archive, "-C", tree], check=True)


def contenders(image: str, directory: pathlib.Path) -> dict[str, Mounter]:
    found: dict[str, Mounter] = {
        KERNEL: functools.partial(by_mica, image, "kernel"),
        OURS: functools.partial(by_mica, image, "fuse"),
    }
    if shutil.which("fuse-overlayfs"):
        found[PEER] = functools.partial(by_fuse_overlayfs, unpacked(directory))
    else:
        print("  fuse-overlayfs is not installed: without it", file=sys.stderr)
    return found


def workload(mounter: Mounter, place: pathlib.Path, name: str, iterations: int) -> dict:
    """Runs a workload in a fresh mount, in a mount namespace of its own."""
    place.mkdir(exist_ok=True)
    words = ["unshare", "--mount", "sh", "-ec", ENTER, place, "run", name, str(iterations)]
    with mounter(place), mica.WORKLOADS.open() as source:
        done = subprocess.run(
            words,
            stdin=source,
            capture_output=True,
            env={"PATH": os.environ["PATH"], "HOME": "/root"},
            timeout=LIMIT,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def geometric_means(workloads: dict, names: list[str]) -> dict[str, float]:
    """Of the medians as ratios to the kernel's."""

    def mean(who: str) -> float:
        logs = [math.log(of[who]["median"] / of[KERNEL]["median"]) for of in workloads.values()]
        return math.exp(sum(logs) / len(logs))

    return {who: mean(who) for who in names}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.mounted")
    parser.add_argument("--quick", action="store_true", help="six workloads, two iterations")
    parser.add_argument("--iterations", type=int)
    parser.add_argument("--only", action="append", help="a workload's name")
    arguments = parser.parse_args()
    if os.geteuid():
        sys.exit("bench.mounted: mounting needs root")
    mica.binary()
    listed = subprocess.check_output([sys.executable, mica.WORKLOADS, "list"], text=True).split()
    names = arguments.only or (QUICK if arguments.quick else listed)
    iterations = arguments.iterations or (2 if arguments.quick else ITERATIONS)

    host = measure.machine()
    started = time.monotonic()
    image = sample.load()
    workloads = {}
    with tempfile.TemporaryDirectory(dir=measure.CACHE) as directory:
        path = pathlib.Path(directory)
        runs = contenders(image, path)
        for turn, name in enumerate(names):
            at = turn % len(runs)
            found = {}
            for who in [*runs][at:] + [*runs][:at]:
                found[who] = workload(runs[who], path / "place", name, iterations)
                print(f"{name} {who}: {found[who]['median'] * 1e3:.2f} ms", file=sys.stderr)
            workloads[name] = {who: found[who] for who in runs}
    result = {
        "command": " ".join(["python3 -m bench.mounted", *sys.argv[1:]]),
        "minutes": round((time.monotonic() - started) / 60, 1),
        "contenders": list(runs),
        "iterations": iterations,
        "workloads": workloads,
        "geometric_mean": geometric_means(workloads, list(runs)),
    }
    is_partial = bool(arguments.quick or arguments.only)
    measure.save("mounted", host, result, is_partial=is_partial)
    if not is_partial:
        report.write()


if __name__ == "__main__":
    main()
