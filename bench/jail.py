"""What the jail costs: conversions in a worker beside the same in the calling process, and a
call of a parser beside e2fsprogs' `debugfs`.

    python3 -m bench.jail [--rounds N] [--quick]

The layers are this machine's /usr/share and /etc. A round is a run of each, one right after
the other in alternating order, and counts by the ratio of the two. CPU is that of all
processes that come of a command, the jailed ones included. What a pull keeps of a blob until
its layer is published is measured by writing as much to a file and removing it.
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
import time

from bench import convert, layers, measure, mica, report

DIRECTORY = measure.CACHE / "jail"

# A worker that outlives its parent becomes a child of this process, which waits for
# all: only so is their CPU time seen.
LAUNCHER = """
import ctypes, os, resource, sys
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ)
code = None
while True:
    try:
        child, status = os.wait()
    except ChildProcessError:
        break
    if child == pid:
        code = os.waitstatus_to_exitcode(status)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(3, "w") as out:
    print(code, usage.ru_utime, usage.ru_stime, file=out)
"""


def cpu(command: list[str | os.PathLike]) -> tuple[float, float]:
    """Seconds of CPU in user mode and in the kernel, of the command and all that it starts."""
    words = [os.fspath(word) for word in command]
    os.sync()
    with tempfile.TemporaryFile("w+") as out:
        launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER]
        subprocess.run(
            ["/bin/sh", "-c", f'exec "$@" 3>&{out.fileno()}', "sh", *launcher, *words],
            check=True,
            pass_fds=[out.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        out.seek(0)
        code, user, system = out.read().split()
    if code != "0":
        raise subprocess.CalledProcessError(int(code), words)
    return float(user), float(system)


def blobs() -> dict[str, dict]:
    """The layers, by name, made if the cache lacks them."""
    facts = DIRECTORY / "facts.json"
    if not facts.exists():
        shutil.rmtree(DIRECTORY, ignore_errors=True)
        DIRECTORY.mkdir(parents=True)
        facts.write_text(json.dumps(make()))
    return json.loads(facts.read_text())


def make() -> dict[str, dict]:
    large, small = DIRECTORY / "large.tar", DIRECTORY / "small.tar"
    for archive, tree in ((large, "usr/share"), (small, "etc")):
        owner = ["--owner=0", "--group=0", "--numeric-owner"]
        plain = ["--sort=name", "--format=pax", *owner]
        subprocess.run(["tar", *plain, "-cf", archive, "-C", "/", tree], check=True)
    made = {}
    for name, archive, compress in (
        ("gzip", large, ["gzip", "-6nc"]),
        ("zstd", large, ["zstd", "-3qc"]),
        ("tar", large, ["cat"]),
        ("small gzip", small, ["gzip", "-6nc"]),
    ):
        blob = DIRECTORY / f"{name.replace(' ', '-')}.blob"
        with blob.open("wb") as out:
            subprocess.run([*compress, archive], stdout=out, check=True)
        made[name] = {
            "blob": str(blob),
            "bytes": blob.stat().st_size,
            "tar_bytes": archive.stat().st_size,
            "digest": layers.sha256(blob),
            "diff_id": layers.sha256(archive),
        }
    large.unlink()
    small.unlink()
    return made


def converted(layer: dict, *options: str) -> tuple[float, float]:
    """Converts a layer into a new store."""
    work = pathlib.Path(tempfile.mkdtemp(dir=DIRECTORY))
    try:
        digests = [f"sha256:{layer[digest]}" for digest in ("diff_id", "digest")]
        return cpu([convert.EXAMPLE, *options, work / "store", layer["blob"], *digests])
    finally:
        shutil.rmtree(work)


def pairs(layer: dict, rounds: int) -> dict:
    """Rounds, after one that has the machine get its memory together."""
    options = {"here": ["--here"], "jail": []}
    runs: dict[str, list] = {place: [] for place in options}
    for number in range(rounds + 1):
        for place in list(options)[:: 1 if number % 2 else -1]:
            took = converted(layer, *options[place])
            if number:
                runs[place].append(took)
    totals = {place: [sum(took) for took in taken] for place, taken in runs.items()}
    ratios = sorted(jail / here for jail, here in zip(totals["jail"], totals["here"], strict=True))
    # Order statistics: where the median is with 95 %.
    reach = len(ratios) ** 0.5
    low = max(0, round(len(ratios) / 2 - reach))
    high = min(len(ratios) - 1, round(len(ratios) / 2 + reach) - 1)
    return {
        "bytes": layer["bytes"],
        "tar_bytes": layer["tar_bytes"],
        "runs": runs,
        **{place: statistics.median(taken) for place, taken in totals.items()},
        "ratio": statistics.median(ratios),
        "ratio_within": [ratios[low], ratios[high]],
    }


def kept(layer: dict, rounds: int) -> dict[str, float]:
    """Seconds of CPU for writing a blob to a file in pieces of some KiB, and removing it."""
    blob = memoryview(pathlib.Path(layer["blob"]).read_bytes())
    path = DIRECTORY / "kept"
    result = {}
    for piece in (16, 512):
        took = []
        for _ in range(rounds):
            start = time.process_time()
            with path.open("wb", buffering=0) as file:
                for at in range(0, len(blob), piece << 10):
                    file.write(blob[at : at + (piece << 10)])
            path.unlink()
            took.append(time.process_time() - start)
        result[str(piece)] = statistics.median(took)
    return result


def calls(rounds: int) -> dict[str, dict]:
    """What commands take that look at a small disk: seconds of CPU, and to their end."""
    with tempfile.TemporaryDirectory() as work:
        disk = pathlib.Path(work) / "disk"
        with disk.open("wb") as file:
            file.truncate(64 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-d", "/etc/default", disk], check=True)
        commands = {
            "mica --version": [mica.binary(), "--version"],
            "mica ext4 ls": [mica.binary(), "ext4", "ls", disk, "/"],
            "debugfs -R ls": ["debugfs", "-R", "ls -l /", disk],
        }
        took: dict[str, dict] = {name: {"cpu": [], "wall": []} for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                start = time.perf_counter()
                subprocess.run(command, check=True, capture_output=True)
                took[name]["wall"].append(time.perf_counter() - start)
                took[name]["cpu"].append(sum(cpu(command)))
    return {
        name: {what: statistics.median(taken) for what, taken in both.items()}
        for name, both in took.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.jail")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="three rounds")
    arguments = parser.parse_args()
    rounds = 3 if arguments.quick else arguments.rounds
    mica.binary()
    convert.build()
    host = measure.machine()
    result: dict = {"layers": {}}
    for name, layer in blobs().items():
        is_small = layer["bytes"] < 16 << 20
        result["layers"][name] = done = pairs(layer, rounds * 4 if is_small else rounds)
        print(f"{name}: {done['here']:.3f} s, {done['ratio']:.4f}", file=sys.stderr)
    result["kept"] = kept(blobs()["gzip"], rounds)
    result["calls"] = calls(rounds * 4)
    measure.save("jail", host, result, is_partial=arguments.quick)
    report.write()


if __name__ == "__main__":
    main()
