"""The Python SDK as a client that is measured: a request in JSON a line, a result in JSON a line.

    PYTHONPATH=sdk/python python3 with_micabox.py IMAGE BACKEND SANDBOX

Requests: {"do": "rounds" | "looks" | "lives" | "write" | "read" | "fork", ...}; all times are seconds.
"""

import concurrent.futures
import json
import pathlib
import sys
import time

from micabox import Sandbox

IMAGE, BACKEND, NAME = sys.argv[1:]
OPTIONS = {"backend": BACKEND, "pull": "never", "network": "none"}
OPTIONS |= {"memory": "128m"} if BACKEND == "kvm" else {}
box = Sandbox.connect(NAME)


def rounds(count: int) -> list[float]:
    """Of each command."""
    return [timed(lambda: box.commands.run("true")) for _ in range(count)]


def looks(count: int) -> list[float]:
    """Of each look for a file."""
    return [timed(lambda: box.files.exists("/etc/passwd")) for _ in range(count)]


def lives(count: int, threads: int) -> float:
    """Until all sandboxes were made, used and ended, so many at once."""

    def life(_: int) -> None:
        with Sandbox.create(IMAGE, **OPTIONS) as made:
            made.commands.run("true")

    def all_of_them() -> None:
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(life, range(count)):
                pass

    return timed(all_of_them)


def write(path: str, local: str) -> float:
    with pathlib.Path(local).open("rb") as file:
        return timed(lambda: box.files.write(path, file))


def read(path: str, local: str) -> float:
    def pieces() -> None:
        with box.files.read(path, format="stream") as source, pathlib.Path(local).open("wb") as to:
            for piece in source:
                to.write(piece)

    return timed(pieces)


def fork(count: int) -> float:
    """Until each copy has run a command."""

    def copies() -> None:
        made = box.fork(count)
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            said = list(pool.map(lambda copy: copy.commands.run("echo here").stdout, made))
        assert said == ["here\n"] * count, said
        gone.extend(made)

    gone: list[Sandbox] = []
    seconds = timed(copies)
    for copy in gone:
        copy.kill()
    return seconds


def timed(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


WORK = {
    "rounds": rounds,
    "looks": looks,
    "lives": lives,
    "write": write,
    "read": read,
    "fork": fork,
}
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps(WORK[request.pop("do")](**request)), flush=True)
