"""A filesystem in memory beside tmpfs, and beside libfuse's passthrough over a tmpfs.

    python3 -m bench.trees [--quick] [--sources DIRECTORY]

A git repository of the sources (or of made-up ones, the same each time) is cloned, each file's
status read, all of it removed, and a file written as git writes a pack: 4,107 bytes at a time.
`--sources` is a directory that is committed into a repository of its own. Needs root, git, and
for the peer libfuse3-dev and a C compiler.
"""

import argparse
import contextlib
import gzip
import hashlib
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from bench import measure, report
from bench.mica import binary

PIECE = 4107
WRITTEN = 64 << 20
FILES = 4000
EXAMPLE = pathlib.Path("/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c")
STEPS = ("clone", "status", "status again", "remove", "writes")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.trees")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--sources", type=pathlib.Path, help="a directory in place of made-up files")
    arguments = parser.parse_args()
    host = measure.machine()
    repository = commit(arguments.sources.resolve() if arguments.sources else None)
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        places = {"tmpfs": stack.enter_context(tmpfs(directory / "tmpfs"))}
        servers = {}
        for cache in ("always", "auto", "none"):
            who = f"mica memfs --cache {cache}"
            server = stack.enter_context(memfs(directory / cache, cache))
            places[who], servers[who] = server
        if peer := built_peer(directory):
            below = stack.enter_context(tmpfs(directory / "below"))
            server = stack.enter_context(passthrough(peer, below, directory / "peer"))
            places["libfuse, passthrough_ll"] = server
        rounds = 3 if arguments.quick else 15
        contenders = {who: lambda place=place: work(repository, place) for who, place in places.items()}
        runs = measure.interleave(contenders, rounds)
        result = {
            "rounds": rounds,
            "piece": PIECE,
            "written": WRITTEN,
            "sources": str(arguments.sources or f"{FILES} made-up files"),
            "contenders": {who: medians(of) for who, of in runs.items()},
            "memory": {who: memory(servers[who], places[who], repository) for who in servers},
        }
    measure.save("trees", host, result)
    report.write()


def commit(sources: pathlib.Path | None) -> pathlib.Path:
    """A repository of the sources, made once."""
    name = hashlib.sha256(str(sources).encode()).hexdigest()[:12]
    repository = measure.CACHE / "trees" / name
    if (repository / ".git" / "packed-refs").exists():
        return repository
    shutil.rmtree(repository, ignore_errors=True)
    if sources:
        shutil.copytree(sources, repository, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    else:
        make_up(repository)
    git = ["git", "-C", repository, "-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    git += ["-c", "gc.auto=0"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "sources"], ["gc", "-q"]):
        subprocess.run([*git, *words], check=True)
    return repository


def make_up(directory: pathlib.Path) -> None:
    """Files of the sizes that sources have, which compress about as well."""
    chance = random.Random(11)
    words = [f"{chance.getrandbits(40):x}" for _ in range(5000)]
    for number in range(FILES):
        path = directory / f"d{number % 200 // 20}" / f"e{number % 200}" / f"file{number}.c"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = int(chance.lognormvariate(8.8, 1.2))
        lines = " ".join(chance.choices(words, k=size // 10 + 1))
        path.write_text(lines[:size] + "\n")


@contextlib.contextmanager
def mounted(place: pathlib.Path) -> Iterator[pathlib.Path]:
    while not os.path.ismount(place):
        time.sleep(0.005)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@contextlib.contextmanager
def tmpfs(place: pathlib.Path) -> Iterator[pathlib.Path]:
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
    with mounted(place):
        yield place


@contextlib.contextmanager
def memfs(place: pathlib.Path, cache: str) -> Iterator[tuple[pathlib.Path, int]]:
    place.mkdir()
    with subprocess.Popen([binary(), "memfs", "--cache", cache, place]) as server:
        with mounted(place):
            yield place, server.pid


def built_peer(directory: pathlib.Path) -> pathlib.Path | None:
    """libfuse's example, with the machine's libfuse."""
    packed = EXAMPLE.with_suffix(".c.gz")
    if not EXAMPLE.exists() and not packed.exists():
        print("  libfuse3-dev is not installed: without its peer", file=sys.stderr)
        return None
    source = directory / EXAMPLE.name
    source.write_bytes(EXAMPLE.read_bytes() if EXAMPLE.exists() else gzip.open(packed).read())
    shutil.copy(EXAMPLE.with_name("passthrough_helpers.h"), directory)
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "fuse3"], check=True, capture_output=True, text=True
    )
    peer = directory / "passthrough_ll"
    subprocess.run(["cc", "-O2", "-w", "-o", peer, source, *flags.stdout.split()], check=True)
    return peer


@contextlib.contextmanager
def passthrough(
    peer: pathlib.Path, below: pathlib.Path, place: pathlib.Path
) -> Iterator[pathlib.Path]:
    place.mkdir()
    options = f"writeback,cache=always,timeout=86400,source={below},clone_fd"
    with subprocess.Popen([peer, "-f", "-o", options, place]), mounted(place):
        yield place


def work(repository: pathlib.Path, place: pathlib.Path) -> dict[str, float]:
    """Seconds of each step."""
    clone = place / "clone"
    took = {"clone": timed(["git", "clone", "-q", repository, clone])}
    took["status"] = timed(["find", clone, "-printf", "%s %b\\n"])
    took["status again"] = timed(["find", clone, "-printf", "%s %b\\n"])
    took["remove"] = timed(["rm", "-rf", clone])
    piece, path = random.Random(1).randbytes(PIECE), place / "pack"
    start = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(WRITTEN // PIECE):
            file.write(piece)
    took["writes"] = time.perf_counter() - start
    path.unlink()
    return took


def timed(command: list) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def medians(runs: list[dict[str, float]]) -> dict:
    seconds = {step: statistics.median(run[step] for run in runs) for step in STEPS}
    return {**seconds, "runs": runs}


def memory(server: int, place: pathlib.Path, repository: pathlib.Path) -> dict[str, int]:
    """Bytes: of a server without files, of three clones, of the server with them, and after them."""
    empty = resident(server)
    for number in range(3):
        subprocess.run(["git", "clone", "-q", repository, place / str(number)], check=True)
    held = sum(path.lstat().st_size for path in place.rglob("*") if not path.is_dir())
    full = resident(server)
    subprocess.run(["rm", "-rf", *place.iterdir()], check=True)
    time.sleep(1)
    return {"empty": empty, "held": held, "full": full, "after": resident(server)}


def resident(process: int) -> int:
    status = pathlib.Path(f"/proc/{process}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
