"""Our monitor beside QEMU on KVM, and copies of a running machine beside boots.

    python3 -m bench.vmm [--rounds N] [--forks 1,8,64] [--quick]

Where this machine's KVM runs ordinary kernels, all of it runs here. Elsewhere it runs in an
emulated machine that has one (`scripts/test-kvm`), twice: by the clock, and counting
instructions. `bench/vmm_timer` is what runs there; it starts everything in turns, in an
order that rotates. Needs root.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict

from bench import first_instruction, kernel, measure, mica, microsandbox, report
from bench.measure import REPOSITORY

TIMER = REPOSITORY / "bench" / "vmm_timer"
COUNTING = REPOSITORY / "bench" / "qemu-icount"
GUEST = REPOSITORY / "target" / "guest"
# QEMU and its firmware.
QEMU = ["/usr/bin/qemu-system-x86_64", "/usr/share/qemu", "/usr/share/seabios"]
# Of KVM's counters, those that say what the exits were for.
COUNTERS = ["exits", "pf_taken", "io_exits", "mmio_exits", "insn_emulation"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.vmm")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--forks", default="1,8,64", help="how many copies at a time")
    parser.add_argument("--quick", action="store_true", help="two rounds, eight copies")
    arguments = parser.parse_args()
    rounds, forks = arguments.rounds, arguments.forks
    if arguments.quick:
        rounds, forks = 2, "1,8"
    if os.geteuid():
        sys.exit("bench.vmm: needs root, which alone sees KVM's counters")
    host = measure.machine()
    here = host["virtualisation"] and os.access("/dev/kvm", os.W_OK)
    program = timer()
    result = {"rounds": rounds, "emulated": not here, "qemu": measure.package("qemu-system-x86")}
    with tempfile.TemporaryDirectory() as scratch:
        files = inputs(pathlib.Path(scratch))
        result["by clock"] = summary(run(program, files, rounds, forks))
        if not here:
            counting = {"MICABOX_QEMU": str(COUNTING)}
            result["by instructions"] = summary(run(program, files, 3, forks, counting))
            rate = subprocess.run([program, "rate", files], stdout=subprocess.PIPE, check=True)
            result["rate"] = json.loads(rate.stdout)["seconds"]
    measure.save("vmm", host, result, is_partial=arguments.quick)
    report.write()


def timer() -> pathlib.Path:
    """The program that starts the machines, built."""
    target = REPOSITORY / "target" / "bench"
    command = ["cargo", "build", "--release", "--locked", "--target-dir", target]
    subprocess.run(command, cwd=TIMER, check=True)
    return target / "release" / "vmm-timer"


def inputs(place: pathlib.Path) -> pathlib.Path:
    """What the program wants to find in its directory."""
    subprocess.run(["strip", "-o", place / "mica", mica.binary()], check=True)
    guest = place / "guest"
    guest.mkdir()
    for name in ("vmlinux", "initrd.cpio"):
        guest.joinpath(name).symlink_to(GUEST / name)
    place.joinpath("vmlinux").symlink_to(GUEST / "vmlinux")
    first_instruction.stopping(GUEST / "vmlinux", place / "stop")
    work = place / "work"
    work.mkdir()
    place.joinpath("bare.cpio").symlink_to(kernel.initrd(work))
    pack = [sys.executable, REPOSITORY / "scripts" / "nested_image.py", place / "box.tar"]
    subprocess.run(pack, check=True)
    if shutil.which("crun"):
        bundle(place / "bundle")
    else:
        print("bench.vmm: no crun here, so no comparison with it", file=sys.stderr)
    if programs := microsandbox.programs():
        shutil.copytree(programs, place / "msb")
    return place


def bundle(place: pathlib.Path) -> None:
    """A bundle for crun, with a root that has a shell."""
    shell = place / "rootfs" / "bin" / "sh"
    shell.parent.mkdir(parents=True)
    for name in ("dev", "proc", "sys"):
        place.joinpath("rootfs", name).mkdir()
    shutil.copy("/bin/busybox", shell)
    subprocess.run(["crun", "spec"], cwd=place, check=True)
    file = place / "config.json"
    config = json.loads(file.read_text())
    config["process"].update(terminal=False, args=["sh", "-c", "echo said"])
    file.write_text(json.dumps(config))
    for name in ("true", "sleep"):
        shutil.copy("/bin/busybox", shell.parent / name)
    config["process"]["args"] = ["sleep", "100000"]
    place.joinpath("stay.json").write_text(json.dumps(config))


def run(
    program: pathlib.Path,
    files: pathlib.Path,
    rounds: int,
    forks: str,
    environment: dict[str, str] | None = None,
) -> list[dict]:
    """The program's lines."""
    names = ["mica", "vmlinux", "stop", "bare.cpio", "box.tar", "guest/vmlinux"]
    names += ["guest/initrd.cpio"]
    programs = [*QEMU]
    if files.joinpath("bundle").exists():
        names.append("bundle")
        programs.append(shutil.which("crun"))
    if files.joinpath("msb").exists():
        names.append("msb")
        # It reads the certificates at each start.
        programs.append("/etc/ssl/certs")
    command = [REPOSITORY / "scripts" / "test-kvm", program, str(rounds), forks, files]
    settings = {
        "MICA": str(mica.binary()),
        "MICABOX_GUEST": str(GUEST),
        "TEST_KVM_FILES": " ".join([*programs, *(str(files / name) for name in names)]),
        # Not mapped memory, whose pages would be in no process's books.
        "TEST_KVM_TRANSPORT": "blk",
        "TEST_KVM_MEMORY": "6g",
        "TEST_KVM_TIMEOUT": "30m",
    }
    environment = {**os.environ, **settings, **(environment or {})}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def summary(lines: list[dict]) -> dict:
    """Medians by contender and by what was measured; copies by how many there were."""
    groups = defaultdict(list)
    for line in lines:
        groups[line["what"], line["who"], line.get("forks")].append(line)
    rate = groups.pop(("rate", "mica --version", None))
    starts, forks = {}, {}
    for (what, who, count), found in groups.items():
        if count is None:
            starts.setdefault(what, {})[who] = medians(found)
        else:
            forks.setdefault(str(count), {})[who] = medians(found)
    return {"rate": rate[0]["seconds"], "starts": starts, "forks": forks}


def medians(lines: list[dict]) -> dict:
    """Of seconds, exits and bytes; the seconds' spread and all of them."""
    seconds = sorted(line["seconds"] for line in lines)
    found = {
        "seconds": statistics.median(seconds),
        "p99": seconds[min(len(seconds) - 1, len(seconds) * 99 // 100)],
        "min": seconds[0],
        "max": seconds[-1],
        "runs": [line["seconds"] for line in lines],
    }
    if "cpu" in lines[0]:
        found["cpu"] = statistics.median(line["cpu"] for line in lines)
    for name in COUNTERS:
        if "counters" in lines[0]:
            counts = (line["counters"].get(name, 0) for line in lines)
            found[name] = statistics.median(counts)
    for part in ("memory", "owner"):
        if part in lines[0]:
            found[part] = {
                kind: {
                    how: statistics.median(line[part][kind][how] for line in lines)
                    for how in ("rss", "pss", "private")
                }
                for kind in ("ram", "own")
            }
    return found


if __name__ == "__main__":
    main()
