"""32 evaluations, each in a copy of one sandbox that was prepared once.

With KVM the copies are forks: machines that continue where the prepared one is, with its processes and
memory. Elsewhere they are made from an image of its files, and start anew.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from micabox import Sandbox, UnsupportedException

COUNT = 32


def prepare(box: Sandbox) -> None:
    """What all evaluations need, and takes long."""
    box.files.write("/work/helpers.py", "def double(n):\n    return 2 * n\n")
    box.commands.run("cd /work && python3 -m compileall -q . && sync")


def copies(box: Sandbox) -> list[Sandbox]:
    """Copies of a sandbox."""
    try:
        return box.fork(COUNT)
    except UnsupportedException as failure:
        print(f"no forks here ({failure.message}): from an image of its files")
    box.commit("prepared")

    def another(_: int) -> Sandbox:
        return Sandbox.create("prepared", memory="256m")

    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(another, range(COUNT)))


def evaluate(box: Sandbox, number: int) -> bool:
    """Whether what a model wrote is right. No other evaluation sees it, and the copy ends with it."""
    answer = f"from helpers import double\nprint(double({number}))\n"
    with box:
        box.files.write("/work/answer.py", answer)
        return box.commands.run("python3 answer.py", cwd="/work").stdout == f"{2 * number}\n"


def main() -> None:
    with Sandbox.create("python:3.12-slim", upper="disk:256m", memory="256m") as box:
        prepare(box)
        began = time.monotonic()
        boxes = copies(box)
        ready = time.monotonic() - began
        with ThreadPoolExecutor(8) as threads:
            right = sum(threads.map(evaluate, boxes, range(COUNT)))
    print(f"{right} of {COUNT} are right; {COUNT} copies were there after {ready:.1f} s")


if __name__ == "__main__":
    main()
