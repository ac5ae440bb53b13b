"""A filesystem in memory beside tmpfs, the kernel's overlay, and peers behind FUSE.

    python3 -m bench.trees [--quick] [--sources DIRECTORY]
    python3 -m bench.trees [--quick] --project NAME [--builds ROUNDS]

A git repository of the sources (or of made-up ones, the same each time) is cloned, each file's
status read, all of it removed, and a file written as git writes a pack: 4,107 bytes at a time.
`--sources` is a directory that is committed into a repository of its own. `--project` is one of
six programs, which is also built, or `all`; the result of one stays while another is measured.
Needs root and git; the projects what their builds need (`scripts/setup --bench`).
"""

import argparse
import contextlib
import datetime
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from bench import measure, report
from bench.tree_places import (
    Mounter,
    Place,
    cached,
    forget_peak,
    held,
    memfs,
    peers,
    resident,
    tmpfs,
)
from bench.tree_sources import FILES, PROJECTS, Project, of_directory, of_project

PIECE = 4107
WRITTEN = 64 << 20
JOBS = "2"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.trees")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument(
        "--sources", type=pathlib.Path, help="a directory in place of made-up files"
    )
    parser.add_argument("--project", choices=[*PROJECTS, "all"], help="a program, which is built")
    parser.add_argument("--builds", type=int, default=3, help="rounds of building")
    arguments = parser.parse_args()
    if arguments.project:
        names = PROJECTS if arguments.project == "all" else [arguments.project]
        for name in names:
            project(name, 1 if arguments.quick else arguments.builds, arguments.quick)
    else:
        plain(arguments.sources, arguments.quick)
    report.write()


def plain(sources: pathlib.Path | None, is_quick: bool) -> None:
    """Measures what needs no build."""
    host = measure.machine()
    repository = of_directory(sources.resolve() if sources else None)
    ways: dict[str, Mounter] = {"tmpfs": tmpfs}
    for cache in ("always", "auto", "none"):
        ways[f"mica memfs --cache {cache}"] = lambda place, cache=cache: memfs(place, cache)
    with all_mounted({**ways, **peers()}) as places:
        rounds = 3 if is_quick else 15
        runs = interleave(places, rounds, lambda place: {**light(repository, place), **pack(place)})
        ours = {who: place for who, place in places.items() if place.holds_files}
        result = {
            "rounds": rounds,
            "piece": PIECE,
            "written": WRITTEN,
            "sources": str(sources or f"{FILES} made-up files"),
            "contenders": {who: medians(of) for who, of in runs.items()},
            "memory": {who: memory(place, repository) for who, place in ours.items()},
        }
    measure.save("trees", host, result, is_partial=is_quick)


def project(name: str, builds: int, is_quick: bool) -> None:
    """Measures one of the programs, and adds it to the result."""
    host = measure.machine()
    repository = of_project(name)
    rounds = 3 if is_quick else 9
    with all_mounted({"tmpfs": tmpfs, "mica memfs": memfs, **peers()}) as places:
        lights = interleave(places, rounds, lambda place: light(repository, place))
        heavies = interleave(places, builds, lambda place: tried(repository, PROJECTS[name], place))
    result = {
        "date": datetime.date.today().isoformat(),
        "commit": measure.commit(),
        "machine": host,
        "source": repository.name,
        "rounds": rounds,
        "builds": builds,
        "contenders": {
            who: {
                **medians(lights[who]),
                **({"failed": True} if None in heavies[who] else medians(heavies[who])),
            }
            for who in places
        },
    }
    results = f"tree-projects{'-quick' if is_quick else ''}"
    known = (measure.load(results) or {}).get("projects", {})
    measure.amend(results, {"projects": {**known, name: result}})


@contextlib.contextmanager
def all_mounted(ways: dict[str, Mounter]):
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        yield {
            who: stack.enter_context(mount(directory / f"place{number}"))
            for number, (who, mount) in enumerate(ways.items())
        }


def interleave(
    places: dict[str, Place], rounds: int, work: Callable[[Place], dict]
) -> dict[str, list[dict]]:
    contenders = {who: lambda place=place: work(place) for who, place in places.items()}
    return measure.interleave(contenders, rounds)


def light(repository: pathlib.Path, place: Place) -> dict[str, float]:
    """Seconds of each step."""
    clone = place.path / "clone"
    return {
        "clone": timed(["git", "clone", "-q", repository, clone]),
        "status": status(clone),
        "status again": status(clone),
        "remove": timed(["rm", "-rf", clone]),
    }


class BuildError(Exception):
    """A program can't be built in a place."""


def tried(repository: pathlib.Path, project: Project, place: Place) -> dict[str, float] | None:
    """What `heavy` says, or nothing if the program can't be built there."""
    try:
        return heavy(repository, project, place)
    except BuildError as failure:
        print(f"  {failure}", file=sys.stderr)
        subprocess.run(["rm", "-rf", place.path / "clone"], check=True)
        return None


def heavy(repository: pathlib.Path, project: Project, place: Place) -> dict[str, float]:
    """Seconds of building a clone and what follows; then files, and bytes: in them, in the page
    cache for them, and in the server's memory at most.
    """
    if place.server:
        forget_peak(place.server)
    clone = place.path / "clone"
    subprocess.run(["git", "clone", "-q", repository, clone], check=True)
    # As in a released archive: nothing that it has is made anew for being older than its source.
    alike = "git ls-files -z | xargs -0 touch -h -d @1000000000"
    subprocess.run(["sh", "-c", alike], cwd=clone, check=True)
    took = {"configure": build(project.configure, clone), "build": build(project.build, clone)}
    if not (clone / project.made).is_file():
        raise BuildError(f"{project.build}: there is no {project.made}")
    took["status of all"] = status(clone)
    took["files"], took["bytes"] = held(place.path)
    took["cached"] = cached(place.path)
    took["peak"] = resident(place.server, "VmHWM") if place.server else 0
    took["remove all"] = timed(["rm", "-rf", clone])
    return took


def build(command: str, clone: pathlib.Path) -> float:
    """Seconds of a command of sh; its messages are shown if it fails."""
    with tempfile.TemporaryFile("w+") as messages:
        start = time.perf_counter()
        done = subprocess.run(
            ["env", f"MAKEFLAGS=-j{JOBS}", "sh", "-c", command],
            cwd=clone,
            stdin=subprocess.DEVNULL,
            stdout=messages,
            stderr=subprocess.STDOUT,
            check=False,
        )
        seconds = time.perf_counter() - start
        if done.returncode != 0:
            messages.seek(0)
            raise BuildError(f"{command} in {clone} failed:\n{messages.read()[-4000:]}")
    return seconds


def pack(place: Place) -> dict[str, float]:
    """Seconds of writing a file as git writes a pack."""
    piece, path = random.Random(1).randbytes(PIECE), place.path / "pack"
    start = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(WRITTEN // PIECE):
            file.write(piece)
    seconds = time.perf_counter() - start
    path.unlink()
    return {"writes": seconds}


def status(directory: pathlib.Path) -> float:
    return timed(["find", directory, "-printf", "%s %b\\n"])


def timed(command: list) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def medians(runs: list[dict[str, float]]) -> dict:
    """Of each step, and beside them what they are of."""
    steps = {step: statistics.median(run[step] for run in runs) for step in runs[0]}
    return {**steps, f"runs of {next(iter(steps))}": runs}


def memory(place: Place, repository: pathlib.Path) -> dict[str, int]:
    """Bytes: of a server without files, of three clones, of the server with them, and after them."""
    assert place.server
    empty = resident(place.server)
    for number in range(3):
        clone = place.path / str(number)
        subprocess.run(["git", "clone", "-q", repository, clone], check=True)
    _, size = held(place.path)
    full = resident(place.server)
    subprocess.run(["rm", "-rf", *place.path.iterdir()], check=True)
    time.sleep(1)
    return {"empty": empty, "held": size, "full": full, "after": resident(place.server)}


if __name__ == "__main__":
    main()
