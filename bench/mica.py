"""The `mica` that is measured: the release build in this checkout, its store in our cache."""

import json
import os
import pathlib
import subprocess
import sys

from bench.measure import CACHE, REPOSITORY

BINARY = REPOSITORY / "target" / "release" / "mica"
STORE = CACHE / "store"
WORKLOADS = REPOSITORY / "bench" / "fs" / "workloads.py"

# Every transport with every root.
SHAPES = [
    ("merged", "pmem"),
    ("stacked", "pmem"),
    ("merged", "blk"),
    ("stacked", "blk"),
]


def binary() -> pathlib.Path:
    """The release build; says how to make it."""
    if not BINARY.exists():
        sys.exit(f"bench: no {BINARY.relative_to(REPOSITORY)}: run `make` first")
    return BINARY


def environment(store: pathlib.Path = STORE) -> dict[str, str]:
    return {**os.environ, "MICABOX_HOME": str(store)}


def load(path: pathlib.Path, name: str, store: pathlib.Path = STORE) -> None:
    """Imports an OCI layout under a name; does nothing that was done before."""
    command = [binary(), "load", path, "--name", name]
    subprocess.run(command, check=True, env=environment(store), stdout=subprocess.DEVNULL)


def run_words(image: str, root: str, transport: str, *options: str) -> list[str]:
    """The command line up to the image's name, for a 512 MiB sandbox."""
    shape = ["--root", root, "--transport", transport, "--memory", "512m"]
    return [str(binary()), "run", "--rm", "--pull", "never", *shape, *options, image]


def workload(
    image: str, root: str, transport: str, name: str, iterations: int, limit: float = 300
) -> dict:
    """Runs a filesystem workload in a fresh sandbox and returns what it printed."""
    # As root, whatever the image says: some workloads drop the guest's caches.
    options = ["-i", "--user", "0", "--workdir", "/", "--entrypoint", "python3"]
    words = [*run_words(image, root, transport, *options), "-", "run", name, str(iterations)]
    with WORKLOADS.open() as source:
        done = subprocess.run(
            words,
            stdin=source,
            capture_output=True,
            env=environment(),
            timeout=limit,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{name} in {root}/{transport}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)
