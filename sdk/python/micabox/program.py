"""Where `mica` and its guest's files are."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys

from micabox import bundle
from micabox.errors import HostException


def mica() -> str:
    """The program: `$MICABOX_MICA`, the one that this package carries, or `mica` on PATH."""
    named = os.environ.get("MICABOX_MICA")
    if not named and bundle.MICA.exists():
        return str(bundle.MICA)
    found = shutil.which(named or "mica")
    if found is None:
        raise HostException(
            f"cannot find `{named or 'mica'}`",
            kind="host",
            hint="put `mica` on PATH, or its path into $MICABOX_MICA",
        )
    return str(pathlib.Path(found).absolute())


def environment() -> dict[str, str]:
    """The environment of the program."""
    environment = dict(os.environ)
    if "MICABOX_GUEST" not in environment and mica() == str(bundle.MICA):
        environment["MICABOX_GUEST"] = str(bundle.guest())
    return environment


def run() -> None:
    """The command `mica` of a wheel."""
    os.execve(mica(), ["mica", *sys.argv[1:]], environment())
