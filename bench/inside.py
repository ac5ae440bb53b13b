"""Runs a benchmark's module on our monitor: here, or in a machine that has a KVM for it.

Where this machine's KVM runs no ordinary kernels, that is an emulated machine (`scripts/test-kvm`) with
Python in it. There the module is called with the same words and the same files.
"""

import compileall
import json
import os
import pathlib
import py_compile
import shutil
import subprocess
import sys
import sysconfig

from bench import measure, mica
from bench.measure import CACHE, REPOSITORY

COUNTING = REPOSITORY / "bench" / "qemu-icount"
# What no benchmark imports.
UNUSED = ["test", "idlelib", "lib2to3", "tkinter", "turtledemo", "ensurepip", "pydoc_data"]


def has_kvm() -> bool:
    """Whether our monitor runs here."""
    return measure.has_kvm(measure.machine())


def inputs(place: pathlib.Path, before: pathlib.Path | None = None) -> pathlib.Path:
    """Fills a directory: `box.tar`, and for each version of ours `VERSION/mica` and `VERSION/guest`."""
    pack = [sys.executable, REPOSITORY / "scripts" / "nested_image.py", place / "box.tar"]
    subprocess.run(pack, check=True)
    mica.binary()
    for version, tree in (("now", REPOSITORY), ("before", before)):
        if tree:
            guest = place / version / "guest"
            guest.mkdir(parents=True)
            program = tree.resolve() / "target" / "release" / "mica"
            subprocess.run(["strip", "-o", place / version / "mica", program], check=True)
            for name in ("vmlinux", "initrd.cpio"):
                shutil.copy(tree / "target" / "guest" / name, guest)
    return place


def result(
    module: str, files: pathlib.Path, *words: str, count: bool = False, memory: str = "6g"
) -> dict:
    """What a module prints that was called as `python3 -m MODULE --only kvm --files FILES WORDS`.

    `count`: with a clock that counts instructions, an instruction being a nanosecond.
    """
    call = ["-m", module, "--only", "kvm", "--files", str(files), *words]
    environment = dict(os.environ)
    if has_kvm() and not count:
        command = [sys.executable, *call]
    else:
        python = interpreter()
        runner = files / "python"
        runner.write_text(
            f"#!/bin/sh\nip link set lo up 2>/dev/null\nmkdir -p /dev/shm\ncd {REPOSITORY}\n"
            f'exec {python[0]} -S "$@"\n'
        )
        runner.chmod(0o755)
        command = [str(REPOSITORY / "scripts" / "test-kvm"), str(runner), *call]
        sources = [str(path) for path in sorted((REPOSITORY / "bench").glob("*.py"))]
        optional = [path for path in (shutil.which("crun"),) if path]
        environment |= {
            "MICA": str(mica.binary()),
            "MICABOX_GUEST": str(REPOSITORY / "target" / "guest"),
            "TEST_KVM_FILES": " ".join([*python, *sources, *optional, str(files)]),
            # Not mapped memory, whose pages would be in no process's books.
            "TEST_KVM_TRANSPORT": "blk",
            "TEST_KVM_MEMORY": memory,
            "TEST_KVM_TIMEOUT": "60m",
        }
        if count:
            environment["MICABOX_QEMU"] = str(COUNTING)
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, check=True, text=True
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1])


def interpreter() -> list[str]:
    """Python's program and its library, as files for an image; the program first."""
    program = pathlib.Path(sys.executable).resolve()
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    compiled = CACHE / f"python-{sys.version.split()[0]}"
    if not compiled.exists():
        work = compiled.with_suffix(".work")
        shutil.rmtree(work, ignore_errors=True)
        unwanted = shutil.ignore_patterns(*UNUSED, "__pycache__", "config-*", "dist-packages")
        shutil.copytree(library, work, ignore=unwanted)
        # In place of the sources: an image's files have no times to compare.
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(work, quiet=1, legacy=True, invalidation_mode=mode)
        for source in work.rglob("*.py"):
            source.unlink()
        work.rename(compiled)
    return [str(program), f"{library}={compiled}"]
