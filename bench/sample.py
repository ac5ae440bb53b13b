"""The sample image in our store, and its tree unpacked for the peers."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import time
from dataclasses import dataclass

from bench import layout, mica, plainvm
from bench.measure import CACHE, REPOSITORY

NAME = "bench.local/sample:latest"
SCRIPT = REPOSITORY / "scripts" / "sample-image"


@dataclass
class Tree:
    """The image's tree, as a directory and as a raw ext4."""

    directory: pathlib.Path
    ext4: pathlib.Path


def directory() -> pathlib.Path:
    """The sample image's OCI layout directory, made if the cache lacks it."""
    made = subprocess.run([SCRIPT], check=True, stdout=subprocess.PIPE, text=True)
    return pathlib.Path(made.stdout.strip().splitlines()[-1])


def load() -> str:
    """Imports the sample image and returns its name."""
    mica.load(directory(), NAME)
    return NAME


def unpacked() -> Tree:
    """The tree as umoci unpacks it, with the peers' init in it. Needs root."""
    source = directory()
    digest = hashlib.sha256((source / "index.json").read_bytes())
    digest.update(mica.WORKLOADS.read_bytes())
    digest.update(plainvm.INIT.encode())
    place = CACHE / "trees" / digest.hexdigest()[:16]
    tree = Tree(place / "tree", place / "tree.ext4")
    if not tree.ext4.exists():
        shutil.rmtree(place.parent, ignore_errors=True)
        place.mkdir(parents=True)
        plain, bundle = place / "plain", place / "bundle"
        without_zstd(source, plain)
        subprocess.run(["umoci", "unpack", "--image", f"{plain}:{layout.TAG}", bundle], check=True)
        shutil.rmtree(plain)
        (bundle / "rootfs").rename(tree.directory)
        shutil.rmtree(bundle)
        plainvm.prepare_tree(tree.directory, mica.WORKLOADS)
        plainvm.make_ext4(tree.directory, tree.ext4)
    return tree


def without_zstd(source: pathlib.Path, directory: pathlib.Path) -> None:
    """The same layers as plain tar, in a new layout: Debian's umoci reads no zstd."""
    blobs = []
    for number, blob in enumerate(layout.blobs(source)):
        if blob.media_type.endswith("+zstd"):
            archive = directory.with_name(f"{number}.tar")
            subprocess.run(["zstd", "-qdf", blob.path, "-o", archive], check=True)
            blob = layout.Blob(archive, blob.diff_id, blob.diff_id, layout.LAYER)
        blobs.append(blob)
    layout.write(directory, blobs)


def observe_machine(image: str) -> plainvm.Machine:
    """Starts a sandbox, looks at the QEMU below it, and stops it."""
    command = [*mica.run_words(image, "merged", "pmem"), "sleep", "60"]
    quiet = subprocess.DEVNULL
    run = subprocess.Popen(command, env=mica.environment(), stdin=quiet, stdout=quiet)
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and run.poll() is None:
            for pid in descendants(run.pid):
                if "qemu" in os.path.basename(os.readlink(f"/proc/{pid}/exe")):
                    return plainvm.Machine.observed(pid)
            time.sleep(0.05)
        raise SystemExit("bench: `mica run` started no QEMU: the peers need one to copy")
    finally:
        run.terminate()
        run.wait()


def descendants(pid: int) -> list[int]:
    """The children of a process, and theirs."""
    return [below for child in children(pid) for below in [child, *descendants(child)]]


def children(pid: int) -> list[int]:
    """The direct children of every thread of a process."""
    found = []
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in path.read_text().split()]
        except FileNotFoundError:
            pass
    return found
