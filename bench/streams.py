"""A gibibyte through a sandbox that runs: `mica exec` and `mica cp`, beside the same without a sandbox.

    python3 -m bench.streams [--mib N] [--rounds N] [--before CHECKOUT] [--quick]

The source is a file in memory, and so is every destination. Beside a pipe through `mica exec SANDBOX cat`
is one through `cat`, beside `mica cp` one from `tar c` to `tar x`. `--before` is a checkout of an older
version, built, to be measured in turns with this one. On our monitor (in an emulated machine, if this
one's KVM runs no kernels) and on QEMU here.
"""

import argparse
import contextlib
import hashlib
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from bench import inside, measure, report
from bench.sandboxes import MIB, Home


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.streams")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=pathlib.Path, help="a checkout of an older version, built")
    parser.add_argument("--quick", action="store_true", help="128 MiB, two rounds")
    parser.add_argument("--backends", default="qemu", help="qemu, kvm or both")
    parser.add_argument("--only", choices=["kvm", "qemu"], help=argparse.SUPPRESS)
    parser.add_argument("--files", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    size, rounds = arguments.mib, arguments.rounds
    if arguments.quick:
        size, rounds = 128, 2
    if arguments.only:
        print(json.dumps(streams(arguments.files, arguments.only, size, rounds)))
        return
    host = measure.machine()
    with tempfile.TemporaryDirectory() as scratch:
        files = inside.inputs(pathlib.Path(scratch), arguments.before)
        backends = {}
        if "qemu" in arguments.backends and not inside.has_kvm():
            backends["qemu"] = streams(files, "qemu", size, rounds)
        if "kvm" in arguments.backends:
            words = ["--mib", str(size), "--rounds", str(rounds)]
            backends["kvm"] = inside.result("bench.streams", files, *words)
    measure.save_backends("streams", host, backends, is_partial=arguments.quick)
    report.write()


def streams(files: pathlib.Path, backend: str, size: int, rounds: int) -> dict:
    """Seconds of each contender, in turns."""
    versions = [name for name in ("now", "before") if (files / name).exists()]
    with contextlib.ExitStack() as stack:
        place = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(dir=roomy(size))))
        source = place / "source"
        with source.open("wb") as file:
            for number in range(size):
                # Each MiB is another one.
                file.write(hashlib.sha256(b"%d" % number).digest() * (MIB // 32))
        contenders = {
            "pipe": lambda: piped(source, ["cat"]),
            "tar": lambda: untarred(source, place / "untarred"),
        }
        for version in versions:
            home = stack.enter_context(Home(files, version, backend))
            # Half of it is for files.
            memory = f"{4 * size + 512}m"
            home.start("work", "-m", memory, "--cpus", "1", "--net", "none")
            home.mica("cp", str(source), "work:/big")
            check(home, source, place)
            contenders |= ours(home, version, source, place)
        found = measure.interleave(contenders, rounds)
    return {
        "mib": size,
        "rounds": rounds,
        "contenders": {
            who: {
                "median": statistics.median(seconds),
                "min": min(seconds),
                "max": max(seconds),
                "runs": seconds,
            }
            for who, seconds in found.items()
        },
    }


def ours(home: Home, version: str, source: pathlib.Path, place: pathlib.Path) -> dict:
    """What is done with a sandbox, by name."""
    execute = home.command("exec", "-i", "work")

    def copy_out() -> float:
        seconds = timed(lambda: home.mica("cp", "work:/big", str(place / "out")))
        verify((place / "out").stat().st_size, source)
        (place / "out").unlink()
        return seconds

    return {
        f"{version}: exec cat": lambda: piped(source, [*execute, "cat"], home.environment),
        f"{version}: exec, in": lambda: piped(
            source, [*execute, "sh", "-c", "wc -c"], home.environment, is_counted=True
        ),
        f"{version}: exec, out": lambda: piped(
            source, [*execute, "cat", "/big"], home.environment, has_input=False
        ),
        f"{version}: cp, in": lambda: timed(lambda: home.mica("cp", str(source), "work:/in")),
        f"{version}: cp, out": copy_out,
    }


def piped(
    source: pathlib.Path,
    words: list[str],
    environment: dict[str, str] | None = None,
    has_input: bool = True,
    is_counted: bool = False,
) -> float:
    """Seconds of `cat SOURCE | WORDS | wc -c`; raises if bytes are missing.

    Without `has_input` the command has no stdin; if it `is_counted`, it counts itself.
    """
    begun = time.perf_counter()
    pipe = subprocess.PIPE
    first = subprocess.Popen(["cat", source], stdout=pipe) if has_input else None
    stdin = first.stdout if first else subprocess.DEVNULL
    middle = subprocess.Popen(words, stdin=stdin, stdout=pipe, env=environment)
    if first:
        first.stdout.close()
    counter = ["cat"] if is_counted else ["wc", "-c"]
    last = subprocess.run(counter, stdin=middle.stdout, stdout=pipe, check=True)
    middle.stdout.close()
    codes = [process.wait() for process in (first, middle) if process]
    seconds = time.perf_counter() - begun
    if any(codes):
        raise RuntimeError(f"{words}: exit codes {codes}")
    verify(int(last.stdout), source)
    return seconds


def untarred(source: pathlib.Path, to: pathlib.Path) -> float:
    to.mkdir()
    script = f"tar -C {source.parent} -cf - {source.name} | tar -C {to} -xf -"
    seconds = timed(lambda: subprocess.run(["sh", "-c", script], check=True))
    verify((to / source.name).stat().st_size, source)
    shutil.rmtree(to)
    return seconds


def timed(work) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def verify(size: int, source: pathlib.Path) -> None:
    if size != source.stat().st_size:
        raise RuntimeError(f"{size} bytes arrived of {source.stat().st_size}")


def check(home: Home, source: pathlib.Path, place: pathlib.Path) -> None:
    """What went in and came out is what it was, byte by byte."""
    home.mica("cp", "work:/big", str(place / "back"))
    for path in (source, place / "back"):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if path == source:
            wanted = digest
    inside_sum = home.mica("exec", "work", "sha256sum", "/big").split()[0]
    if not wanted == digest == inside_sum:
        sys.exit(f"bench.streams: {wanted} went in, {inside_sum} arrived, {digest} came back")
    (place / "back").unlink()


def roomy(size: int) -> str | None:
    """A directory in memory, if it has room."""
    free = shutil.disk_usage("/dev/shm").free
    return "/dev/shm" if free > 4 * size * MIB else None


if __name__ == "__main__":
    main()
