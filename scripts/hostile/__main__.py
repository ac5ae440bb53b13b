"""Attacks mica from every side, and prints what came of it.

    python3 scripts/hostile [--mica FILE] [--write | --check] [NAME...]

As root: mica runs as root against hostile images, registries, disks, snapshot files, guests
and another user of the machine. Each attempt is a function in one of the modules beside this
one; it fails unless the attempt was stopped as the table says. --write puts the table into
docs/threat-model.md, --check compares it with the one there. NAMEs choose attempts by a part
of their functions' names.
"""

import argparse
import importlib
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.dont_write_bytecode = True  # the tree stays as it is

from attempts import ATTEMPTS, NotHereError
from world import World

TOP = Path(__file__).resolve().parent.parent.parent
PAGE = TOP / "docs" / "threat-model.md"
MODULES = ("images", "registries", "disks", "snapshots", "guests", "users")
MARKS = re.compile(r"(<!-- attempts: begin.*?-->\n).*?(<!-- attempts: end -->)", re.DOTALL)


def table(rows):
    """A table for the page."""
    lines = ["| who | attempt | what happened | stopped by |", "| --- | --- | --- | --- |"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def run(attempt, arguments):
    """What happened, and whether it is what should."""
    directory = tempfile.mkdtemp(prefix="hostile-")
    os.chmod(directory, 0o755)  # another user is to get as far as the store
    world = World(Path(directory), arguments.mica)
    try:
        attempt.function(world)
        return attempt.happened, True
    except NotHereError as reason:
        return f"not tried here: {reason}", True
    except Exception as error:  # noqa: BLE001 whatever it is, it belongs into the table
        print("".join(traceback.format_exception(error, limit=4)), end="")
        return f"NOT STOPPED: {error}".splitlines()[0], False
    finally:
        world.end()
        # Not shutil's, which recurses: trees may be deep.
        subprocess.run(["rm", "-rf", directory], check=False)


def main():
    """The exit code."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--mica", type=Path, default=TOP / "target" / "release" / "mica")
    options.add_argument("--write", action="store_true", help="put the table into the page")
    options.add_argument("--check", action="store_true", help="compare it with the page's")
    options.add_argument("names", nargs="*", metavar="NAME", help="these attempts alone")
    arguments = options.parse_args()
    if os.geteuid() != 0:
        sys.exit("hostile: needs root, to become another user")
    arguments.mica = arguments.mica.resolve(strict=True)
    for module in MODULES:
        importlib.import_module(module)

    def is_wanted(attempt):
        return any(name in attempt.function.__name__ for name in arguments.names or [""])

    rows, failed, start = [], 0, time.monotonic()
    for attempt in filter(is_wanted, ATTEMPTS):
        begin = time.monotonic()
        happened, stopped = run(attempt, arguments)
        took = time.monotonic() - begin
        print(f"{took:5.1f} s  {attempt.who}: {attempt.what}: {happened}", flush=True)
        failed += not stopped
        # The page says what happens where everything can be tried.
        rows.append((attempt.who, attempt.what, attempt.happened, attempt.stopped_by))
    took = time.monotonic() - start
    if not arguments.names and not failed:
        old = PAGE.read_text()
        new = MARKS.sub(lambda marks: marks[1] + table(rows) + marks[2], old)
        if arguments.write:
            PAGE.write_text(new)
        elif arguments.check and new != old:
            print(f"hostile: {PAGE.relative_to(TOP)} has another table; --write mends it")
            failed += 1
    print(f"hostile: {len(rows)} attempts in {took:.0f} s, {failed} not as they should be")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
