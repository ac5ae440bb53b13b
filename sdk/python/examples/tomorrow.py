"""A session that is kept, and gone on with tomorrow.

python3 tomorrow.py begin     works, and leaves the sandbox paused: no processor is used until
python3 tomorrow.py go-on     another process goes on, where everything is as it was: files and processes
python3 tomorrow.py end       ends it
"""

from __future__ import annotations

import sys

from micabox import Sandbox

NAME = "session"


def begin() -> None:
    box = Sandbox.create("python:3.12-slim", name=NAME, metadata={"user": "ada"})
    box.detach()  # the sandbox no longer ends with this process
    box.files.write("/work/notes.txt", "day 1: began\n")
    box.files.write("/work/count", "")
    counter = "while sleep 0.01; do echo >>/work/count; done"
    box.commands.run(counter, background=True, timeout=None).disconnect()
    box.pause()
    print(f"kept as `{NAME}`")


def go_on() -> None:
    (info,) = Sandbox.list(metadata={"user": "ada"})
    box = Sandbox.connect(info.name)  # which resumes it
    box.commands.run("echo 'day 2: went on' >>/work/notes.txt")
    count = "sleep 0.5; wc -l </work/count"
    before, after = (int(box.commands.run(count).stdout) for _ in range(2))
    assert before < after, "the command of yesterday goes on"
    print(box.files.read("/work/notes.txt"), end="")
    box.pause()


def end() -> None:
    Sandbox.connect(NAME).kill()


if __name__ == "__main__":
    {"begin": begin, "go-on": go_on, "end": end}[sys.argv[1]]()
