"""Where `mica` and its guest's files are."""

from __future__ import annotations

import os
import pathlib
import shutil

from micabox.errors import HostException


def mica() -> str:
    """The program: `$MICABOX_MICA`, or `mica` on PATH."""
    named = os.environ.get("MICABOX_MICA")
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
    return dict(os.environ)
