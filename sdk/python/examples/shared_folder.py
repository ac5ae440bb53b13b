"""A coding agent at work in a folder of this machine's, and nowhere else.

    python3 shared_folder.py FOLDER

The folder is /work in the sandbox. What the agent changes there is changed here at once, as this user's; all else
it changes is gone with the sandbox. It has no network, and sees the folder's .git read-only.
"""

from __future__ import annotations

import pathlib
import sys

from micabox import CommandExitException, Sandbox

# What a coding agent does: it looks, runs the tests, repairs, and runs them again.
REPAIR = "sed -i 's/return a - b/return a + b/' add.py"
TEST = "python3 -m unittest -q test_add.py"


def main(folder: str) -> None:
    path = pathlib.Path(folder).resolve()
    volumes = [f"{path}:/work", f"{path / '.git'}:/work/.git:ro"]
    with Sandbox.create("python:3.12-slim", volume=volumes, workdir="/work", net="none") as box:
        print(box.commands.run("ls").stdout, end="")
        try:
            box.commands.run(TEST)
        except CommandExitException as failure:
            print(failure.stderr.splitlines()[-1])
        box.commands.run(REPAIR)
        print(box.commands.run(TEST).stderr.splitlines()[-1])
        box.files.write("/work/notes/agent.md", "add.py subtracted.\n")
        try:
            box.commands.run("rm -r .git")
        except CommandExitException:
            print(".git is as it was")


if __name__ == "__main__":
    main(sys.argv[1])
