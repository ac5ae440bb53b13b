"""A first start of an image that is not here, over a line of 100 Mbit/s and a round trip of 20 ms.

    python3 -m bench.lazy [--rounds N] [--starts]

A registry has an image of some 430 MB as archives and as EROFS images. In an empty store, `python3 -c 'import json'`
runs as a container of this machine's kernel: after all of the image was pulled, with `--lazy`, and with `--lazy` where
the order of an earlier start is beside the image. What came over the line, to the program's end, is counted. Beside
it, what others take for the same image over the same line (lazy_peers.py).

Beside that, what a page costs that the server of layers has in its memory, by FUSE, and for a machine that asks for it:
in memory that userfaultfd fills, and on a disk; not with `--starts`. As root.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
from functools import partial

from bench import layout, lazy_peers, measure, mica, packed, report
from bench.line import Line
from bench.measure import CACHE, Cost
from bench.served import links

# Microseconds of a fault whose bytes are here.
AIM = 10

NAME = "bench.local/python"
# Each way has a name of its own in the registry: an order is beside one of them.
NAMES = {way: f"bench/{way}:1" for way in ("whole", "lazy", "ordered")}
PROGRAM = ["python3", "-c", "import json; print(json.dumps([]))"]
RATE = 100e6 / 8
ROUND_TRIP = 0.02


def registry(*words: str) -> str:
    command = [measure.REPOSITORY / "scripts" / "registry", *words]
    return subprocess.check_output(command, text=True).strip()


def merged(archive: pathlib.Path) -> None:
    """Python's packages, with what they have in /lib in /usr/lib, where the links of the last layer lead."""
    source = packed.images(["set-0"])["set-0"][-1].path.with_suffix("")
    with tempfile.TemporaryDirectory(dir=packed.PLACE) as work:
        subprocess.run(["tar", "-xf", source, "-C", work], check=True)
        subprocess.run(["cp", "-a", f"{work}/lib/.", f"{work}/usr/lib"], check=True)
        shutil.rmtree(f"{work}/lib")
        packed.tar(pathlib.Path(work), archive)


def push(work: pathlib.Path, host: str) -> tuple[int, int]:
    """Puts the image into the registry, under a name for each way. Returns the sizes of its layers, packed and not."""
    store = work / "origin"
    python = packed.blob("python", merged)
    blobs = [*packed.images(["set-5"])["set-5"], python, packed.blob("links", links)]
    layout.write(work / "layout", blobs)
    mica.load(work / "layout", NAME, store)
    for name in NAMES.values():
        packed.command(store, "push", "-q", "--erofs", NAME, f"{host}/{name}")
    lazy_peers.push(work / "layout", host, work)
    size = sum(file.stat().st_size for file in (store / "layers").rglob("*.erofs"))
    return sum(blob.path.stat().st_size for blob in blobs), size


def empty(store: pathlib.Path) -> None:
    """Removes a store, once nothing goes on in it."""
    while "mica-layers" in subprocess.check_output(["ps", "-eo", "args"], text=True):
        time.sleep(0.01)
    shutil.rmtree(store, ignore_errors=True)


def words(host: str, way: str) -> list[str]:
    options = [] if way == "whole" else ["--lazy"]
    return ["run", "--rm", "-q", "--backend", "host", *options, f"{host}/{NAMES[way]}", *PROGRAM]


def start(host: str, way: str, store: pathlib.Path) -> Cost:
    """Runs the program with an empty store. CPU is also that of what goes on behind it."""
    empty(store)
    return packed.command(store, *words(host, way))


def received(line: Line, way: str, store: pathlib.Path) -> int:
    """Bytes that came over the line before the end of the program."""
    empty(store)
    before = line.received
    command = [mica.binary(), *words(line.host, way)]
    subprocess.run(command, env=mica.environment(store), check=True, stdout=subprocess.DEVNULL)
    return line.received - before


def record(host: str, store: pathlib.Path) -> None:
    """Puts the order of a start beside the image."""
    start(host, "ordered", store)
    while not list(store.glob("images/sha256/*/order.json")):
        time.sleep(0.01)
    packed.command(store, "push", "-q", "--start-order", f"{host}/{NAMES['ordered']}")


def pages() -> dict[str, list[str]]:
    """What the examples of both faces of the server say."""
    build = ["cargo", "run", "--release", "-q"]
    ways = {
        "fuse": ["-p", "micabox-layerfs", "--example", "faults"],
        "asked": ["-p", "micabox-vmm", "--features", "test-kvm", "--example", "asked"],
    }
    said = {
        way: subprocess.check_output([*build, *words], text=True) for way, words in ways.items()
    }
    return {way: text.splitlines() for way, text in said.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.lazy")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--starts", action="store_true", help="not what a page costs")
    arguments = parser.parse_args()
    host = measure.machine()
    work = pathlib.Path(tempfile.mkdtemp(dir=CACHE))
    try:
        at = registry("start")
        archives, size = push(work, at)
        with Line(at, RATE, ROUND_TRIP) as line:
            store = work / "store"
            record(line.host, store)
            counts = {way: received(line, way, store) for way in NAMES}
            ways = {way: partial(start, line.host, way, store) for way in NAMES}
            costs = measure.interleave(ways, arguments.rounds)
            peers = lazy_peers.compare(work, line, PROGRAM, arguments.rounds)
    finally:
        empty(work)
    result = {
        "rounds": arguments.rounds,
        "archives": archives,
        "size": size,
        "received": counts | peers[1],
        "costs": {who: measure.summary(runs) for who, runs in costs.items()} | peers[0],
        "missing": peers[2],
    }
    if not arguments.starts:
        result["pages"] = pages()
        asked = "\n".join(result["pages"]["asked"])
        here = float(re.search(r"here, a part at a time: ([0-9.]+) us a fault", asked)[1])
        verdict = "met" if here <= AIM else "missed"
        print(f"lazy: a fault of what is here {here:.1f} us, aim {AIM} us: {verdict}")
    measure.save("lazy", host, result)
    report.write()


if __name__ == "__main__":
    main()
