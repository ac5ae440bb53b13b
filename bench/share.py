"""Folders of the host in a sandbox: the filesystem workloads on one, beside Debian's virtiofsd with
the same QEMU; git, npm and cargo in one, beside the same in a sandbox's own disk.

    python3 -m bench.share [--quick] [--iterations N] [--only NAME]... [--programs] [--workloads]

Every workload has all of its files in the shared folder, which is the whole root of the process
that runs it: a copy of the image's tree, entered with chroot by us and booted from by the peer.
Needs root: to unpack the image with its owners, and for virtiofsd.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import time
from functools import partial

from bench import measure, mica, plainvm, programs, report, sample

ITERATIONS = 5
LIMIT = 300.0  # seconds for one VM

# `/tmp` is on the share here, so these are others again, or have nothing on the share.
ELSEWHERE = ["shm_write_fsync_16m", "rootfs_create_1k", "rootfs_delete_1k", "rootfs_rename_1k"]
QUICK = ["metadata_scan_stdlib", "random_read_stdlib", "small_file_create_1k", "negative_lookup"]

OURS, PEER = "mica", "virtiofsd"

# Makes the share the root of the workload. The kernel's filesystems are the sandbox's.
ENTER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
BIND_ALL = 4096 | 16384
for name in ("proc", "sys", "dev"):
    if libc.mount(b"/" + name.encode(), b"/w/" + name.encode(), None, BIND_ALL, None):
        raise OSError(ctypes.get_errno(), name)
os.chroot("/w")
os.chdir("/")
os.execv("/usr/bin/python3", ["python3", "-", *sys.argv[1:]])
"""


def ours(image: str, tree: sample.Tree, name: str, iterations: int) -> dict:
    """Runs a workload in a sandbox, on a folder of the host."""
    with plainvm.copied(tree.directory) as copy:
        options = ["-i", "--user", "0", "--workdir", "/", "--volume", f"{copy}:/w"]
        options += ["--entrypoint", "python3"]
        words = mica.run_words(image, "merged", "pmem", *options)
        words += ["-c", ENTER, "run", name, str(iterations), "root"]
        with mica.WORKLOADS.open() as source:
            done = subprocess.run(
                words,
                stdin=source,
                capture_output=True,
                env=mica.environment(),
                timeout=LIMIT,
                text=True,
                check=False,
            )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def peer(machine: plainvm.Machine, tree: sample.Tree, name: str, iterations: int) -> dict:
    """Runs a workload in a VM whose root is virtiofsd's, with its defaults."""
    with plainvm.virtiofs(tree.directory, machine.memory_mib) as root:
        return plainvm.workload(machine, root, name, iterations, LIMIT, "root")


def workloads(names: list[str], iterations: int) -> dict:
    image = sample.load()
    machine, tree = sample.observe_machine(image), sample.unpacked()
    runs = {OURS: partial(ours, image, tree), PEER: partial(peer, machine, tree)}
    results = {}
    for turn, name in enumerate(names):
        at = turn % len(runs)
        found = {}
        for who in [*runs][at:] + [*runs][:at]:
            found[who] = runs[who](name, iterations)
            print(f"{name} {who}: {found[who]['median'] * 1e3:.2f} ms", file=sys.stderr)
        results[name] = {who: found[who] for who in runs}
    return {"workloads": results, "geometric_mean": mean(results)}


def mean(results: dict) -> float:
    """The geometric mean of our medians, as ratios to the peer's."""
    logs = [math.log(runs[OURS]["median"] / runs[PEER]["median"]) for runs in results.values()]
    return math.exp(sum(logs) / len(logs))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.share")
    parser.add_argument("--quick", action="store_true", help="four workloads, two iterations")
    parser.add_argument("--iterations", type=int)
    parser.add_argument("--only", action="append", help="a workload's name")
    parser.add_argument("--workloads", action="store_true", help="not git, npm and cargo")
    parser.add_argument("--programs", action="store_true", help="only git, npm and cargo")
    arguments = parser.parse_args()
    if os.geteuid():
        sys.exit("bench.share: the peer needs root")
    mica.binary()
    listed = subprocess.check_output([sys.executable, mica.WORKLOADS, "list"], text=True).split()
    listed = [name for name in listed if name not in ELSEWHERE]
    names = arguments.only or (QUICK if arguments.quick else listed)
    iterations = arguments.iterations or (2 if arguments.quick else ITERATIONS)

    host = measure.machine()
    started = time.monotonic()
    result = {
        "command": " ".join(["python3 -m bench.share", *sys.argv[1:]]),
        "peer": pathlib.Path(plainvm.VIRTIOFSD).name + " " + measure.package("qemu-system-common"),
    }
    is_partial = bool(arguments.quick or arguments.only)
    if not arguments.programs:
        result |= workloads(names, iterations)
    if not (arguments.workloads or is_partial):
        result["programs"] = programs.run()
    result["minutes"] = round((time.monotonic() - started) / 60, 1)
    before = {} if is_partial else measure.load("share") or {}
    measure.save("share", host, before | result, is_partial=is_partial)
    report.write()


if __name__ == "__main__":
    main()
