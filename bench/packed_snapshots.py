"""Snapshots in a packed store: four of one sandbox, and those of three sandboxes that install the same.

    python3 -m bench.packed_snapshots

Each sandbox has the same image and a disk, and unpacks packages of Debian's there, in an order of its own. The snapshots
are packed one after the other: what each takes by itself, and what it adds to the packs. With KVM, snapshots with memory
as well.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
from functools import partial

from bench import layout, measure, mica, packed, report
from bench.measure import CACHE

# Layers of bench.packed, as archives that are unpacked in the sandboxes.
SETS = (0, 4, 15)
# Where the base has links to directories, packages may have these.
UNPACK = "tar --keep-directory-symlink -C / -xf"
# What the sandbox does between two of its snapshots.
STEPS = (
    f"{UNPACK} /sets/set-0.tar",
    f"{UNPACK} /sets/set-4.tar",
    "head -c 1200000 /dev/urandom | od -x | split -l 500 - /srv/part-",
    "for part in /srv/part-*c; do echo more >> $part; done; rm /srv/part-*a",
)


class Sandboxes:
    """Sandboxes of one image in a store."""

    def __init__(self, work: pathlib.Path):
        self.store = work / "store"
        self.sets = work / "sets"
        self.sets.mkdir()
        for name in SETS:
            os.link(packed.PLACE / f"set-{name}.tar", self.sets / f"set-{name}.tar")

    def mica(self, *words: str) -> str:
        environment = mica.environment(self.store)
        command = [mica.binary(), *words]
        return subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def start(self, name: str) -> None:
        words = [
            "run",
            "-d",
            "-q",
            "--name",
            name,
            "--net",
            "none",
            "--upper",
            "disk:4g",
            "-m",
            "512m",
        ]
        self.mica(*words, "-v", f"{self.sets}:/sets:ro", "bench.local/base", "sleep", "inf")

    def do(self, name: str, script: str) -> None:
        self.mica("exec", name, "sh", "-c", script)

    def snapshot(self, of: str, name: str, *, has_memory: bool) -> None:
        memory = ["--memory"] if has_memory else []
        self.mica("snapshot", "create", *memory, of, name)

    def pack(self, names: list[str]) -> list[dict]:
        """Packs snapshots one after the other. Gives what each took, and what it added."""
        sizes = []
        for name in names:
            kept = json.loads(self.mica("store", "pack", "--json", "--snapshot", name))["kept"]
            sizes.append({"name": name, "before": kept["before"], "added": kept["added"]})
        return sizes

    def of_one(self, *, has_memory: bool) -> list[str]:
        """Snapshots of one sandbox, one after each step."""
        self.start("one")
        names = []
        for number, step in enumerate(STEPS):
            self.do("one", step)
            names.append(f"one-{number}")
            self.snapshot("one", names[-1], has_memory=has_memory)
        self.mica("rm", "-f", "one")
        return names

    def of_many(self, *, has_memory: bool) -> list[str]:
        """A snapshot of each of three sandboxes."""
        names = []
        for number in range(3):
            sets = SETS[number:] + SETS[:number]
            self.start(f"many-{number}")
            for name in sets:
                self.do(f"many-{number}", f"{UNPACK} /sets/set-{name}.tar")
            names.append(f"of-many-{number}")
            self.snapshot(f"many-{number}", names[-1], has_memory=has_memory)
            self.mica("rm", "-f", f"many-{number}")
        return names


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.packed_snapshots")
    parser.add_argument("--memory", action="store_true", help="with memory as well, with KVM")
    arguments = parser.parse_args()
    host = measure.machine()
    (packed.PLACE / "debs").mkdir(parents=True, exist_ok=True)
    base = packed.blob("base", packed.base)
    for number in SETS:
        make = partial(packed.packages, packed.SETS[number])
        packed.blob(f"set-{number}", make)
    result = {}
    for kind in ["disks", "memories"] if arguments.memory else ["disks"]:
        for what in ("of_one", "of_many"):
            work = pathlib.Path(tempfile.mkdtemp(dir=CACHE))
            try:
                sandboxes = Sandboxes(work)
                layout.write(work / "layout", [base])
                mica.load(work / "layout", "bench.local/base", sandboxes.store)
                names = getattr(sandboxes, what)(has_memory=kind == "memories")
                result[f"{kind} {what}"] = sandboxes.pack(names)
            finally:
                shutil.rmtree(work)
    measure.save("packed_snapshots", host, {"sizes": result})
    report.write()


if __name__ == "__main__":
    main()
