"""Runs a benchmark's module on our monitor: here, or in a machine that has a KVM for it.

Where this machine's KVM runs no ordinary kernels, that is an emulated machine (`scripts/test-kvm`) with
Python in it. There the module is called with the same words and the same files.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

from bench import measure, mica
from bench.measure import REPOSITORY

CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
COUNTING = REPOSITORY / "bench" / "qemu-icount"


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
        pack = [sys.executable, REPOSITORY / "scripts" / "nested_python.py"]
        python = subprocess.check_output(pack, text=True).splitlines()
        runner = files / "python"
        runner.write_text(
            f"#!/bin/sh\nip link set lo up 2>/dev/null\nmkdir -p /dev/shm\ncd {REPOSITORY}\n"
            f'exec {python[0]} -S "$@"\n'
        )
        runner.chmod(0o755)
        command = [str(REPOSITORY / "scripts" / "test-kvm"), str(runner), *call]
        sources = [str(path) for path in sorted((REPOSITORY / "bench").glob("*.py"))]
        # Without certificates some clients don't begin, whatever they connect to.
        optional = [CERTIFICATES] if pathlib.Path(CERTIFICATES).exists() else []
        optional += [path for path in (shutil.which("crun"),) if path]
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
