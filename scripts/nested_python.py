#!/usr/bin/env python3
"""Prints this Python as FILEs for nested_image.py, one a line: the program, and its library.

The library is compiled, and kept under ${XDG_CACHE_HOME:-~/.cache}/micabox.
"""

import compileall
import os
import pathlib
import py_compile
import shutil
import sys
import sysconfig

# Modules that no program here imports.
UNUSED = ["test", "idlelib", "lib2to3", "tkinter", "turtledemo", "ensurepip", "pydoc_data"]


def compiled(library: pathlib.Path) -> pathlib.Path:
    """A copy of the library, compiled."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    done = cache / "micabox" / f"python-{sys.version.split()[0]}"
    if done.exists():
        return done
    work = done.with_suffix(".work")
    shutil.rmtree(work, ignore_errors=True)
    unwanted = shutil.ignore_patterns(*UNUSED, "__pycache__", "config-*", "dist-packages")
    shutil.copytree(library, work, ignore=unwanted)
    # In place of the sources: an image's files have no times to compare.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(work, quiet=1, legacy=True, invalidation_mode=mode)
    for source in work.rglob("*.py"):
        source.unlink()
    work.rename(done)
    return done


if __name__ == "__main__":
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    print(pathlib.Path(sys.executable).resolve())
    print(f"{library}={compiled(library)}")
