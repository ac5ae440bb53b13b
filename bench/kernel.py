"""From starting QEMU to PID 1: our guest kernel beside the distribution's for clouds.

    python3 -m bench.kernel [--rounds N] [--quick]

Both boot the same static init, alone in an initrd, in the machine that `mica run` starts,
which is emulated where KVM does not work. Debian's kernel needs modules for what ours has built
in; they are in its initrd, uncompressed, and `ready` is when they are loaded. That is
kinder to it than its own initrd, which first runs udev and shell scripts.
"""

import argparse
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial

from bench import measure, plainvm, report, sample
from bench.measure import CACHE, REPOSITORY

PACKAGE = "linux-image-6.12-cloud-amd64"
# What a sandbox needs before its first process, in Debian's kernel modules all of it.
MODULES = ["virtio_pci", "virtio_console", "virtio_blk", "nd_pmem", "virtio_pmem", "erofs"]
MODULES += ["overlay", "virtio_rng", "virtio_net"]
INIT = REPOSITORY / "bench" / "kernel_init.c"
PACK = REPOSITORY / "scripts" / "initrd.py"

PLAIN = ["console=ttyS0", "quiet", "panic=-1"]
REPORT = re.compile(rb"^(init|ready) ([\d.]+) (\d+)\r?$", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.kernel")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="three rounds")
    arguments = parser.parse_args()
    rounds = 3 if arguments.quick else arguments.rounds
    host = measure.machine()
    machine = sample.observe_machine(sample.load())

    built = subprocess.run(
        [REPOSITORY / "kernel" / "build"], check=True, stdout=subprocess.PIPE, text=True
    )
    ours = pathlib.Path(built.stdout.strip())
    cloud = unpacked(PACKAGE)
    with tempfile.TemporaryDirectory() as scratch:
        bare, loaded = initrds(pathlib.Path(scratch), cloud)
        (vmlinuz,) = (cloud / "boot").glob("vmlinuz-*")
        contenders = {
            "ours, as `mica run` starts it": boot(machine, ours / "vmlinux", bare, machine.words),
            "ours, plain command line": boot(machine, ours / "vmlinux", bare, PLAIN),
            "ours, bzImage": boot(machine, ours / "bzImage", bare, machine.words),
            "Debian cloud, as `mica run` starts ours": boot(
                machine, vmlinuz, loaded, machine.words
            ),
            "Debian cloud, plain command line": boot(machine, vmlinuz, loaded, PLAIN),
        }
        for contender in contenders.values():  # once untimed: page cache
            contender()
        runs = measure.interleave(contenders, rounds)
    sizes = {
        "vmlinux": (ours / "vmlinux").stat().st_size,
        "bzImage": (ours / "bzImage").stat().st_size,
        "Debian bzImage": vmlinuz.stat().st_size,
        "Debian modules": sum(file.stat().st_size for file in cloud.rglob("*.ko*")),
    }
    result = {
        "rounds": rounds,
        "qemu": measure.package("qemu-system-x86"),
        "debian": cloud.name,
        "words": machine.words,
        "build": (ours / "build.txt").read_text(),
        "sizes": sizes,
        "contenders": {
            name: {mark: statistics.median(run[mark] for run in found) for mark in found[0]}
            | {"runs": found}
            for name, found in runs.items()
        },
    }
    measure.save("kernel", host, result, is_partial=arguments.quick)
    report.write()


def boot(
    machine: plainvm.Machine, kernel: pathlib.Path, initrd: pathlib.Path, words: list[str]
) -> partial:
    """What starts the machine with this kernel and returns seconds to init and to ready."""
    at = machine.arguments.index("-kernel")
    command = [machine.program, *machine.arguments[:at], *machine.arguments[at + 2 :]]
    command += ["-m", "512M", "-serial", "stdio"]
    command += ["-kernel", kernel, "-initrd", initrd, "-append", " ".join(words)]
    return partial(timed, command)


def timed(command: list, limit: float = 120) -> dict[str, float]:
    """Runs the machine to its end; seconds from the start until each mark was printed."""
    start = time.perf_counter()
    seen, found = b"", {}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as child:
        overdue = threading.Timer(limit, child.kill)
        overdue.start()
        while chunk := os.read(child.stdout.fileno(), 4096):
            now = time.perf_counter() - start
            seen += chunk
            for mark in REPORT.finditer(seen):
                found.setdefault(mark[1].decode(), now)
        overdue.cancel()
    if "ready" not in found or b"cannot load" in seen:
        raise RuntimeError(f"{command}: {seen[-2000:].decode(errors='replace')}")
    return found


def initrds(scratch: pathlib.Path, cloud: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """An initrd with the init alone, and one with Debian's modules too."""
    modules = scratch / "modules"
    modules.mkdir()
    for number, path in enumerate(in_order(cloud, MODULES)):
        name = f"{number:02}-{path.name.removesuffix('.xz')}"
        if path.suffix == ".xz":
            with (modules / name).open("wb") as out:
                subprocess.run(["xz", "-dc", path], check=True, stdout=out)
        else:
            shutil.copy(path, modules / name)
    return initrd(scratch), initrd(scratch, modules)


def initrd(scratch: pathlib.Path, *files: pathlib.Path) -> pathlib.Path:
    """An initrd with the init and `files`."""
    init = scratch / "init"
    subprocess.run(["gcc", "-Os", "-static", "-s", "-o", init, INIT], check=True)
    packed = scratch / f"{len(files)}.cpio"
    with packed.open("wb") as out:
        subprocess.run([sys.executable, PACK, init, *files], check=True, stdout=out)
    return packed


def in_order(cloud: pathlib.Path, names: list[str]) -> list[pathlib.Path]:
    """The modules' files, each after those it depends on; built-in ones have none."""
    files = {path.name.split(".")[0].replace("-", "_"): path for path in cloud.rglob("*.ko*")}
    found: dict[str, pathlib.Path] = {}

    def visit(name: str) -> None:
        path = files.get(name)
        if name in found or not path:
            return
        data = path.read_bytes()
        if path.suffix == ".xz":
            data = subprocess.run(["xz", "-dc", path], check=True, stdout=subprocess.PIPE).stdout
        depends = re.search(rb"\0depends=([^\0]*)\0", data)
        for other in depends[1].decode().split(",") if depends else []:
            visit(other.replace("-", "_"))
        found[name] = path

    for name in names:
        visit(name)
    return list(found.values())


def unpacked(package: str) -> pathlib.Path:
    """The newest image that the meta package stands for, unpacked and not installed."""
    depends = subprocess.run(
        ["apt-cache", "depends", "--important", package],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    name = re.search(r"Depends: (linux-image-\S+)", depends)
    if not name:
        sys.exit(f"bench.kernel: apt knows no {package}")
    place = CACHE / "kernels" / name[1]
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            get = ["apt-get", "-qq", "-o", "APT::Sandbox::User=", "download", name[1]]
            subprocess.run(get, check=True, cwd=scratch)
            (archive,) = pathlib.Path(scratch).glob("*.deb")
            root = pathlib.Path(scratch, "root")
            subprocess.run(["dpkg", "-x", archive, root], check=True)
            root.rename(place)
    return place


if __name__ == "__main__":
    main()
