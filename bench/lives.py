"""Sandboxes that are created, used once and removed: how long, how much memory, and what is left.

    python3 -m bench.lives [--count N] [--quick]

`mica run -d --idle`, `mica exec NAME true`, `mica rm -f`, one after the other and eight at a time; the
same with crun, where it is installed. On our monitor (in an emulated machine, if this one's KVM runs no
kernels) and on QEMU here. What was there before and what is afterwards is counted: files of the store
and of /run and /dev/shm, processes, control groups, sockets, mounts.
"""

import argparse
import concurrent.futures
import itertools
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from bench import inside, measure, report
from bench.sandboxes import Home, adopt_orphans, census, left, memory, share

AT_A_TIME = [1, 8]
FLAGS = ["-m", "128m", "--cpus", "1", "--net", "none"]
PHASES = ["create", "use", "remove"]
# One in so many is looked at for its memory, which takes longer than using it.
LOOK = 10


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.lives")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="24 sandboxes, not a hundred")
    parser.add_argument("--backends", default="qemu", help="qemu, kvm or both")
    parser.add_argument("--only", choices=["kvm", "qemu"], help=argparse.SUPPRESS)
    parser.add_argument("--files", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    count = 24 if arguments.quick else arguments.count
    if arguments.only:
        print(json.dumps(lives(arguments.files, arguments.only, count)))
        return
    host = measure.machine()
    with tempfile.TemporaryDirectory() as scratch:
        files = inside.inputs(pathlib.Path(scratch))
        if shutil.which("crun"):
            bundle(files / "bundle")
        backends = {}
        if "kvm" in arguments.backends:
            backends["kvm"] = inside.result("bench.lives", files, "--count", str(count))
        if "qemu" in arguments.backends and not inside.has_kvm():
            backends["qemu"] = lives(files, "qemu", count)
    measure.save_backends("lives", host, backends, is_partial=arguments.quick)
    report.write()


def bundle(place: pathlib.Path) -> None:
    """A bundle for crun that stays."""
    from bench import vmm

    vmm.bundle(place)
    (place / "stay.json").rename(place / "config.json")


def lives(files: pathlib.Path, backend: str, count: int) -> dict:
    """So many lives, alone and eight at a time: seconds by phase, memory, and what is left."""
    adopt_orphans()
    numbers = itertools.count()
    result = {"count": count, "ways": {}}
    with Home(files, "now", backend) as home:

        def ours() -> dict:
            return life(home, f"life-{next(numbers)}")

        contenders = {"mica": ours}
        if (files / "bundle").exists() and shutil.which("crun"):
            contenders["crun"] = lambda: container(files / "bundle", f"life-{next(numbers)}")
        ours()  # leaves the image's template, and the files in the page cache
        try:
            contenders.get("crun", ours)()
        except subprocess.CalledProcessError as failure:
            print(f"bench.lives: no comparison with crun: {failure}", file=sys.stderr)
            del contenders["crun"]
        before = census(home)
        for (who, contender), at_once in itertools.product(contenders.items(), AT_A_TIME):
            begun = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
                futures = [pool.submit(contender) for _ in range(count)]
                found = [future.result() for future in futures]
            took = time.monotonic() - begun
            result["ways"].setdefault(who, {})[str(at_once)] = summary(found, took)
            print(f"  {backend}, {who}, {at_once} at a time: {took:.0f} s", file=sys.stderr)
        result["left"] = left(home, before)
    return result


def life(home: Home, name: str) -> dict:
    """One sandbox of ours."""
    times = [time.monotonic()]
    identity = home.start(name, *FLAGS)
    times.append(time.monotonic())
    home.mica("exec", name, "true")
    times.append(time.monotonic())
    look = {}
    if int(name.rsplit("-", 1)[1]) % LOOK == 0:
        look["memory"] = memory(home.processes(identity))
    paused = time.monotonic() - times[-1]
    home.mica("rm", "-f", name)
    times.append(time.monotonic() - paused)
    return {**phases(times), **look}


def container(place: pathlib.Path, name: str) -> dict:
    """One container of crun's."""
    times = [time.monotonic()]
    for words in (
        ["run", "-d", "-b", str(place), name],
        ["exec", name, "true"],
        ["delete", "-f", name],
    ):
        subprocess.run(["crun", *words], check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        times.append(time.monotonic())
    return phases(times)


def phases(times: list[float]) -> dict:
    pairs = zip(PHASES, itertools.pairwise(times), strict=True)
    found = {phase: end - begin for phase, (begin, end) in pairs}
    return {**found, "whole": times[-1] - times[0]}


def summary(found: list[dict], took: float) -> dict:
    """p50 and p99 of each phase, in seconds; memory of those that were looked at, in bytes."""
    result = {"seconds": took, "phases": {}}
    for phase in [*PHASES, "whole"]:
        values = [one[phase] for one in found]
        result["phases"][phase] = {
            "p50": statistics.median(values),
            "p99": share(values, 0.99),
            "runs": values,
        }
    looks = [one["memory"] for one in found if "memory" in one]
    if looks:
        kinds = looks[0]
        result["memory"] = {
            kind: {
                "p50": statistics.median(look[kind] for look in looks),
                "max": max(look[kind] for look in looks),
            }
            for kind in kinds
        }
    return result


if __name__ == "__main__":
    main()
