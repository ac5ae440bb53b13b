"""A start of a packed image, whose layers are served until it is unpacked.

    python3 -m bench.served [--rounds N]

A compiler's first output as a container of this machine's kernel: of a packed image; of one that is unpacked first; and
of the image as it is whole. A page that is served, beside one of a file on this disk.
"""

import argparse
import pathlib
import shutil
import subprocess
import tempfile
import time

from bench import layout, measure, mica, packed, report
from bench.measure import CACHE, Cost

NAME = "bench.local/compiler"
PROGRAM = "echo 'int main() {}' | g++ -x c++ -c -o /tmp/a.o -"


def links(archive: pathlib.Path) -> None:
    """What packages over the base hide of it: they have /lib as a directory."""
    with tempfile.TemporaryDirectory(dir=packed.PLACE) as work:
        for name in ["bin", "lib", "lib64", "sbin"]:
            (pathlib.Path(work) / name).symlink_to(f"usr/{name}")
        packed.tar(pathlib.Path(work), archive)


def starts(work: pathlib.Path, rounds: int) -> dict:
    """What each way takes, and the size of the image's layers."""
    store = work / "store"
    compiler = packed.images(["set-5"])["set-5"]
    layout.write(work / "layout", [*compiler, packed.blob("links", links)])
    mica.load(work / "layout", NAME, store)
    size = sum(file.stat().st_size for file in (store / "layers").rglob("*.erofs"))
    words = ["run", "--rm", "-q", "--backend", "host", NAME, "sh", "-c", PROGRAM]

    def whole() -> Cost:
        packed.command(store, "store", "unpack", NAME)
        return packed.command(store, *words)

    def served() -> Cost:
        pack()
        return packed.command(store, *words)

    def unpacked() -> Cost:
        pack()
        costs = [
            packed.command(store, "store", "unpack", NAME),
            packed.command(store, *words),
        ]
        wall, user, system = (
            sum(getattr(cost, name) for cost in costs) for name in ("wall", "user", "system")
        )
        return Cost(wall, user, system, max(cost.rss for cost in costs))

    def pack() -> None:
        """Packs, once no process serves the image any more."""
        while "mica-layers" in subprocess.check_output(["ps", "-eo", "args"], text=True):
            time.sleep(0.01)
        packed.command(store, "store", "pack", "--all")

    ways = {"whole": whole, "served": served, "unpacked": unpacked}
    costs = measure.interleave(ways, rounds)
    pack()
    return {"size": size, "costs": {who: measure.summary(runs) for who, runs in costs.items()}}


def pages() -> list[str]:
    """What the example of served files says: a page's time, and the speed from end to end."""
    words = ["cargo", "run", "--release", "-q", "-p", "micabox-layerfs", "--example", "faults"]
    return subprocess.check_output(words, text=True).splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.served")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    host = measure.machine()
    work = pathlib.Path(tempfile.mkdtemp(dir=CACHE))
    try:
        result = {"rounds": arguments.rounds, **starts(work, arguments.rounds), "pages": pages()}
    finally:
        shutil.rmtree(work)
    measure.save("served", host, result)
    report.write()


if __name__ == "__main__":
    main()
