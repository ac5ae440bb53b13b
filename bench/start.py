"""From `mica run` to the first output of a command, split into its phases.

    python3 -m bench.start [--rounds N] [--quick]

Beside it, the same kernel and machine under a plain QEMU whose init is the command, on
an ext4 root: what a VM costs before there is an agent or an image. And podman, where it
is installed, for scale: no VM, and no emulation. Needs root, to unpack the image for ext4
with its owners.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
from functools import partial

from bench import measure, mica, plainvm, report, sample
from bench.measure import CACHE, FirstOutput

TEXT = "first-output"
PHASES = ["plan", "VMM start", "kernel", "agent mounts", "exec", "first output"]
PODMAN_STORE = ["--root", str(CACHE / "podman"), "--runtime", "runc"]
PODMAN_LIMITS = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]


def ours(image: str, root: str, transport: str) -> FirstOutput:
    words = [*mica.run_words(image, root, transport, "--timing=json"), "echo", TEXT]
    return measure.first_output(words, TEXT.encode(), env=mica.environment())


def ext4(machine: plainvm.Machine, tree: sample.Tree) -> FirstOutput:
    with plainvm.ext4(tree.ext4, machine.memory_mib) as root:
        command = plainvm.echo_command(machine, root, TEXT)
        return measure.first_output(command, TEXT.encode())


def podman(tree: sample.Tree) -> FirstOutput:
    """On the unpacked tree: podman 4.3 fails to unpack the image's last layer."""
    options = ["--rm", "--network", "none", *PODMAN_LIMITS, "--rootfs", f"{tree.directory}:O"]
    words = ["podman", *PODMAN_STORE, "run", *options, "echo", TEXT]
    return measure.first_output(words, TEXT.encode())


def phases_of(run: FirstOutput) -> dict[str, float]:
    """Seconds by phase, in order; empty for a peer."""
    for line in run.messages.splitlines():
        if line.startswith("{"):
            found = json.loads(line)["phases"]
            return {name: found[name] / 1e3 for name in PHASES}
    return {}


def summary(runs: list[FirstOutput]) -> dict:
    """Medians, of the whole and of each phase, and the raw runs."""
    phases = [phases_of(run) for run in runs]
    return {
        "median": statistics.median(run.seconds for run in runs),
        "min": min(run.seconds for run in runs),
        "max": max(run.seconds for run in runs),
        "phases": {name: statistics.median(phase[name] for phase in phases) for name in phases[0]},
        "runs": [
            {"seconds": run.seconds, "phases": phase}
            for run, phase in zip(runs, phases, strict=True)
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.start")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="two rounds")
    arguments = parser.parse_args()
    if os.geteuid():
        sys.exit("bench.start: the peers need root")
    mica.binary()
    host = measure.machine()
    image = sample.load()
    machine = sample.observe_machine(image)
    contenders = {
        f"{root}/{transport}": partial(ours, image, root, transport)
        for root, transport in mica.SHAPES
    }
    tree = sample.unpacked()
    contenders["ext4"] = partial(ext4, machine, tree)
    if shutil.which("podman"):
        contenders["podman"] = partial(podman, tree)
    else:
        print("bench.start: no podman here, so no comparison with it", file=sys.stderr)
    rounds = 2 if arguments.quick else arguments.rounds
    for contender in contenders.values():  # once untimed: page cache
        contender()
    runs = {who: summary(found) for who, found in measure.interleave(contenders, rounds).items()}
    result = {
        "rounds": rounds,
        "machine_of_all": machine.described(),
        "podman": measure.package("podman"),
        "qemu": measure.package("qemu-system-x86"),
        "phases": PHASES,
        "contenders": runs,
    }
    measure.save("start", host, result, is_partial=arguments.quick)
    report.write()


if __name__ == "__main__":
    main()
