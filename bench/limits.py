"""Memory that a sandbox gives back, and the latency of its neighbours while it uses all of its limits.

    python3 -m bench.limits [--samples N] [--quick] [--backends qemu,kvm]

Memory: a guest fills half of its memory and frees it; the PSS of its processes on the host says how much is
given back, and when (free page reporting). Neighbours: the time of `mica exec NAME true` in idle sandboxes,
while another one is idle and while it loads processors, memory, processes, disk or network.
"""

import argparse
import itertools
import json
import pathlib
import statistics
import sys
import tempfile
import time

from bench import inside, measure, report
from bench.sandboxes import MIB, Home, adopt_orphans, memory, share

NEIGHBOURS = 3
SMALL = ["-m", "128m", "--cpus", "1", "--net", "none"]
LIMITED = [
    "-m",
    "256m",
    "--cpus",
    "1",
    "--pids-limit",
    "200",
    "--shm-size",
    "1g",
    "--upper",
    "disk:64m",
]
# Each goes on until its sandbox is removed.
LOADS = {
    "processors": "for n in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait",
    "memory": "while :; do dd if=/dev/zero of=/dev/shm/x bs=1M count=900 2>/dev/null; rm -f /dev/shm/x; done",
    "processes": "while :; do (sleep 5 &) 2>/dev/null; done",
    "disk": "while :; do dd if=/dev/zero of=/x bs=64k count=2000 conv=fsync 2>/dev/null; done",
    "network": "while :; do nc -w 1 10.255.255.1 9 </dev/zero 2>/dev/null; done",
}
FILL = 256 * MIB
# Share of the freed pages that the guest's kernel keeps on its own lists.
KEPT = 0.1
PATIENCE = 60


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.limits")
    parser.add_argument("--samples", type=int, default=200, help="of each state")
    parser.add_argument("--quick", action="store_true", help="40 samples of each")
    parser.add_argument("--backends", default="qemu,kvm", help="qemu, kvm or both")
    parser.add_argument("--only", choices=["kvm", "qemu"], help=argparse.SUPPRESS)
    parser.add_argument("--files", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    samples = 40 if arguments.quick else arguments.samples
    if arguments.only:
        print(json.dumps(limits(arguments.files, arguments.only, samples)))
        return
    host = measure.machine()
    with tempfile.TemporaryDirectory() as scratch:
        files = inside.inputs(pathlib.Path(scratch))
        backends = {}
        if "kvm" in arguments.backends:
            words = ["--samples", str(samples)]
            backends["kvm"] = inside.result("bench.limits", files, *words)
        if "qemu" in arguments.backends and not inside.has_kvm():
            backends["qemu"] = limits(files, "qemu", samples)
    measure.save_backends("limits", host, backends, is_partial=arguments.quick)
    report.write()


def limits(files: pathlib.Path, backend: str, samples: int) -> dict:
    """Bytes before, during and after a guest's use of its memory; exec times of its neighbours."""
    adopt_orphans()
    with Home(files, "now", backend) as home:
        result = {"samples": samples, "given_back": given_back(home), "loads": {}}
        neighbours = [f"neighbour-{number}" for number in range(NEIGHBOURS)]
        for name in neighbours:
            home.start(name, *SMALL)
        for load, script in LOADS.items():
            home.start("loaded", *LIMITED)
            states = {"idle": execs(home, neighbours, samples)}
            home.mica("exec", "-d", "loaded", "sh", "-c", script)
            time.sleep(2)
            states["loaded"] = execs(home, neighbours, samples)
            home.mica("rm", "-f", "loaded")
            result["loads"][load] = states
            print(f"  {backend}, {load}", file=sys.stderr)
    return result


def given_back(home: Home) -> dict:
    """Bytes of a sandbox's processes: idle, with FILL bytes written, and after these are freed."""
    identity = home.start("loaded", "-m", "512m", "--shm-size", "400m", "--net", "none")

    def held() -> int:
        return memory(home.processes(identity))["pss"]

    result = {"fill": FILL, "idle": held()}
    fill = f"dd if=/dev/urandom of=/dev/shm/x bs=1M count={FILL // MIB} 2>/dev/null"
    home.mica("exec", "loaded", "sh", "-c", fill)
    result["full"] = held()
    home.mica("exec", "loaded", "rm", "/dev/shm/x")
    begun = time.monotonic()
    while time.monotonic() - begun < PATIENCE:
        result |= {"after": held(), "seconds": time.monotonic() - begun}
        if result["full"] - result["after"] >= FILL * (1 - KEPT):
            break
        time.sleep(0.2)
    home.mica("rm", "-f", "loaded")
    return result


def execs(home: Home, names: list[str], samples: int) -> dict:
    """Seconds of `mica exec NAME true`, the sandboxes in turn."""
    values = []
    for name in itertools.islice(itertools.cycle(names), samples):
        begun = time.monotonic()
        home.mica("exec", name, "true")
        values.append(time.monotonic() - begun)
    return {"p50": statistics.median(values), "p99": share(values, 0.99), "runs": values}


if __name__ == "__main__":
    main()
