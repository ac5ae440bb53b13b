"""A first start of an image that is not here, over a line of 100 Mbit/s and a round trip of 20 ms.

    python3 -m bench.lazy [--rounds N]

A registry has an image of some 430 MB as archives and as EROFS images. In an empty store, `python3 -c 'import json'`
runs as a container of this machine's kernel: after all of the image was pulled, and with `--lazy`. What came over the
line, to the program's end, is counted.
"""

import argparse
import pathlib
import shutil
import subprocess
import tempfile
import time

from bench import layout, measure, mica, packed, report
from bench.line import Line
from bench.measure import CACHE, Cost
from bench.served import links

NAME = "bench.local/python"
PROGRAM = ["python3", "-c", "import json; print(json.dumps([]))"]
RATE = 100e6 / 8
ROUND_TRIP = 0.02


def registry(*words: str) -> str:
    command = [measure.REPOSITORY / "scripts" / "registry", *words]
    return subprocess.check_output(command, text=True).strip()


def merged(archive: pathlib.Path) -> None:
    """Python's packages, with what they have in /lib in /usr/lib, where the links of the last layer lead."""
    source = packed.images()["set-0"][-1].path.with_suffix("")
    with tempfile.TemporaryDirectory(dir=packed.PLACE) as work:
        subprocess.run(["tar", "-xf", source, "-C", work], check=True)
        subprocess.run(["cp", "-a", f"{work}/lib/.", f"{work}/usr/lib"], check=True)
        shutil.rmtree(f"{work}/lib")
        packed.tar(pathlib.Path(work), archive)


def push(work: pathlib.Path, host: str) -> tuple[str, int, int]:
    """Puts the image into the registry. Returns its name there, and the sizes of its layers, packed and not."""
    store = work / "origin"
    found = packed.images()
    python = packed.blob("python", merged)
    blobs = [*found["set-5"], python, packed.blob("links", links)]
    layout.write(work / "layout", blobs)
    mica.load(work / "layout", NAME, store)
    name = f"{host}/bench/python:1"
    packed.command(store, "push", "-q", "--erofs", NAME, name)
    size = sum(file.stat().st_size for file in (store / "layers").rglob("*.erofs"))
    return "bench/python:1", sum(blob.path.stat().st_size for blob in blobs), size


def start(name: str, line: Line, store: pathlib.Path, *options: str) -> Cost:
    """Runs the program with an empty store, and waits for nothing that goes on behind it."""
    while "mica-layers" in subprocess.check_output(["ps", "-eo", "args"], text=True):
        time.sleep(0.01)
    shutil.rmtree(store, ignore_errors=True)
    words = ["run", "--rm", "-q", "--backend", "host", *options, f"{line.host}/{name}", *PROGRAM]
    return packed.command(store, *words)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.lazy")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    host = measure.machine()
    work = pathlib.Path(tempfile.mkdtemp(dir=CACHE))
    received = {"whole": [], "lazy": []}
    try:
        at = registry("start")
        name, archives, size = push(work, at)
        with Line(at, RATE, ROUND_TRIP) as line:

            def counted(way: str, *options: str) -> Cost:
                before = line.received
                cost = start(name, line, work / "store", *options)
                received[way].append(line.received - before)
                return cost

            ways = {
                "whole": lambda: counted("whole"),
                "lazy": lambda: counted("lazy", "--lazy"),
            }
            costs = measure.interleave(ways, arguments.rounds)
    finally:
        shutil.rmtree(work)
    result = {
        "rounds": arguments.rounds,
        "archives": archives,
        "size": size,
        "received": {way: sorted(counts)[len(counts) // 2] for way, counts in received.items()},
        "costs": {who: measure.summary(runs) for who, runs in costs.items()},
    }
    measure.save("lazy", host, result)
    report.write()


if __name__ == "__main__":
    main()
