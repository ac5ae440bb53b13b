"""ext4 without a kernel beside a kernel's, and others.

    python3 -m bench.ext4 [--rounds 9]

As root. All contenders work on a file in /dev/shm: no disk is part of any number.
"""

import argparse
import contextlib
import json
import pathlib
import shutil
import statistics
import subprocess
import tarfile
import tempfile
import time

from bench import measure, mica, report

SIZE = 2 << 30
MKFS_SIZE = 8 << 30
TREE_FILES = 30_000
CRATE = pathlib.Path(__file__).parent / "engines"


def run(*words, **options) -> str:
    words = [str(word) for word in words]
    done = subprocess.run(words, check=False, capture_output=True, text=True, **options)
    if done.returncode:
        raise RuntimeError(f"{words}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def build() -> pathlib.Path:
    """The timing program, built."""
    target = measure.REPOSITORY / "target" / "bench"
    run("cargo", "build", "--release", "--locked", "--target-dir", target, cwd=CRATE)
    return target / "release" / "ext4-engines"


class Bench:
    """Everything in one directory in memory."""

    def __init__(self, engines: pathlib.Path, mica: pathlib.Path, scratch: pathlib.Path):
        self.engines, self.mica, self.scratch = engines, mica, scratch
        self.image = scratch / "image"
        self.mount = scratch / "mount"
        self.mount.mkdir()

    def fresh(self) -> None:
        """A new filesystem, the same for all."""
        self.image.unlink(missing_ok=True)
        run(self.engines, "mkfs", self.image, SIZE)

    def engine(self, name: str) -> dict:
        self.fresh()
        return json.loads(run(self.engines, name, self.image))

    @contextlib.contextmanager
    def mounted(self, *command):
        run(*command)
        try:
            yield
        finally:
            run("umount", self.mount)

    def directory(self, *command) -> dict:
        with self.mounted(*command):
            return json.loads(run(self.engines, "directory", self.mount))

    def kernel(self) -> dict:
        self.fresh()
        return self.directory("mount", "-o", "loop", self.image, self.mount)

    def tmpfs(self) -> dict:
        return self.directory("mount", "-t", "tmpfs", "tmpfs", self.mount)

    def fuse2fs(self) -> dict:
        self.fresh()
        return self.directory("fuse2fs", "-o", "fakeroot", self.image, self.mount)

    def mkfs(self) -> float:
        """Seconds in process, the file's creation included."""
        self.image.unlink(missing_ok=True)
        return json.loads(run(self.engines, "mkfs", self.image, MKFS_SIZE))["mkfs"]

    def timed(self, *command) -> float:
        start = time.perf_counter()
        run(*command)
        return time.perf_counter() - start

    def mke2fs(self) -> float:
        """Seconds of the process, told that the file reads as zeros."""
        self.image.unlink(missing_ok=True)
        with self.image.open("wb") as file:
            file.truncate(MKFS_SIZE)
        extended = "nodiscard,assume_storage_prezeroed=1"
        return self.timed("mke2fs", "-q", "-t", "ext4", "-E", extended, self.image)

    def mica_mkfs(self) -> float:
        """Seconds of our process."""
        self.image.unlink(missing_ok=True)
        return self.timed(self.mica, "ext4", "mkfs", self.image, "--size", "8G")

    def make_tree(self) -> None:
        """Small files in many directories, as a tree and as an archive."""
        tree = self.scratch / "tree"
        for number in range(TREE_FILES):
            directory = tree / f"d{number % 300:03}"
            directory.mkdir(parents=True, exist_ok=True)
            (directory / f"file{number}").write_bytes(bytes([number % 251]) * (number * 37 % 16000))
        with tarfile.open(self.scratch / "tree.tar", "w", format=tarfile.PAX_FORMAT) as archive:
            archive.add(tree, arcname=".")

    def import_ours(self) -> float:
        self.image.unlink(missing_ok=True)
        start = time.perf_counter()
        run(self.mica, "ext4", "mkfs", self.image, "--size", "2G")
        run(self.mica, "ext4", "import", self.image, self.scratch / "tree.tar")
        return time.perf_counter() - start

    def import_mke2fs(self) -> float:
        self.image.unlink(missing_ok=True)
        with self.image.open("wb") as file:
            file.truncate(SIZE)
        extended = "nodiscard,assume_storage_prezeroed=1"
        tree = self.scratch / "tree"
        return self.timed("mke2fs", "-q", "-t", "ext4", "-E", extended, "-d", tree, self.image)

    def import_kernel(self) -> float:
        self.fresh()
        start = time.perf_counter()
        with self.mounted("mount", "-o", "loop", self.image, self.mount):
            run("tar", "-C", self.mount, "-xf", self.scratch / "tree.tar")
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    engines = build()
    command = mica.binary()
    host = measure.machine()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        bench = Bench(engines, command, pathlib.Path(scratch))
        contenders = {
            "ours": lambda: bench.engine("ours"),
            "rust-fs-ext4": lambda: bench.engine("rust-fs-ext4"),
            "kernel ext4": bench.kernel,
            "tmpfs": bench.tmpfs,
        }
        if shutil.which("fuse2fs"):
            contenders["fuse2fs"] = bench.fuse2fs
        found = measure.interleave(contenders, rounds)
        making = {
            "ours, in process": bench.mkfs,
            "`mica ext4 mkfs`, a process": bench.mica_mkfs,
            "`mke2fs`, a process": bench.mke2fs,
        }
        made = measure.interleave(making, rounds)
        bench.make_tree()
        importing = {
            "`mica ext4 mkfs` and `import`": bench.import_ours,
            "`mke2fs -d`": bench.import_mke2fs,
            "loop mount and `tar -x`": bench.import_kernel,
        }
        imported = measure.interleave(importing, rounds)
    rows = {
        who: {row: statistics.median(run[row] for run in runs) for row in runs[0]}
        for who, runs in found.items()
    }
    path = measure.save(
        "ext4",
        host,
        {
            "rounds": rounds,
            "e2fsprogs": measure.package("e2fsprogs"),
            "rows": rows,
            "mkfs": {who: statistics.median(runs) for who, runs in made.items()},
            "import": {who: statistics.median(runs) for who, runs in imported.items()},
            "runs": {"rows": found, "mkfs": made, "import": imported},
        },
    )
    report.write()
    print(path)


if __name__ == "__main__":
    main()
