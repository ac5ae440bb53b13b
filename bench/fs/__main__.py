"""The filesystem workloads in the guest: four shapes of a sandbox, ext4 and virtio-fs.

    python3 -m bench.fs [--quick] [--iterations N] [--only NAME]...

Each workload gets a fresh VM in each configuration; the configurations take turns, so
that a slow minute of the machine hits all. Needs root: to unpack the image for the peers
with its owners, and for virtiofsd.
"""

import argparse
import math
import os
import subprocess
import sys
import time
from functools import partial

from bench import measure, mica, plainvm, report, sample

ITERATIONS = 5
QUICK = [
    "metadata_scan_stdlib",
    "read_all_py_stdlib",
    "negative_lookup",
    "cold_import",
    "cold_read_all",
    "rootfs_create_1k",
    "mmap_exec_64m",
]
LIMIT = 300.0  # seconds for one VM


def configurations(image: str, tree: sample.Tree, machine: plainvm.Machine) -> dict:
    """Name → function of a workload and its iterations."""

    def peer(make_root, source):
        def run(name: str, iterations: int) -> dict:
            with make_root(source, machine.memory_mib) as root:
                return plainvm.workload(machine, root, name, iterations, LIMIT)

        return run

    found = {
        f"{root}/{transport}": (partial(mica.workload, image, root, transport, limit=LIMIT))
        for root, transport in mica.SHAPES
    }
    found["ext4"] = peer(plainvm.ext4, tree.ext4)
    found["virtiofs"] = peer(plainvm.virtiofs, tree.directory)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.fs")
    parser.add_argument("--quick", action="store_true", help="seven workloads, two iterations")
    parser.add_argument("--iterations", type=int)
    parser.add_argument("--only", action="append", help="a workload's name")
    arguments = parser.parse_args()
    if os.geteuid():
        sys.exit("bench.fs: the peers need root")
    mica.binary()
    listed = subprocess.check_output([sys.executable, mica.WORKLOADS, "list"], text=True).split()
    names = arguments.only or (QUICK if arguments.quick else listed)
    iterations = arguments.iterations or (2 if arguments.quick else ITERATIONS)

    host = measure.machine()
    started = time.monotonic()
    image = sample.load()
    machine = sample.observe_machine(image)
    runs = configurations(image, sample.unpacked(), machine)
    workloads = {}
    for turn, name in enumerate(names):
        at = turn % len(runs)
        order = [*runs][at:] + [*runs][:at]
        found = {}
        for who in order:
            found[who] = runs[who](name, iterations)
            print(f"{name} {who}: {found[who]['median'] * 1e3:.2f} ms", file=sys.stderr)
        workloads[name] = {who: found[who] for who in runs}
    result = {
        "command": " ".join(["python3 -m bench.fs", *sys.argv[1:]]),
        "machine_of_all": machine.described(),
        "minutes": round((time.monotonic() - started) / 60, 1),
        "configurations": list(runs),
        "workloads": workloads,
        "geometric_mean": geometric_means(workloads, list(runs)),
    }
    partial = arguments.quick or arguments.only
    measure.save("fs", host, result, is_partial=bool(partial))
    if not partial:
        plot = measure.REPOSITORY / "bench" / "fs" / "plot.py"
        # Debian's python3-matplotlib belongs to Debian's interpreter.
        subprocess.run(["/usr/bin/python3", plot], check=True)
        report.write()


def geometric_means(workloads: dict, names: list[str]) -> dict[str, float]:
    """Of the medians as ratios to ext4's."""
    means = {}
    for who in names:
        logs = [
            math.log(runs[who]["median"] / runs["ext4"]["median"]) for runs in workloads.values()
        ]
        means[who] = math.exp(sum(logs) / len(logs))
    return means


if __name__ == "__main__":
    main()
