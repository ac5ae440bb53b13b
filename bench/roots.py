"""Disposable roots on this machine's own kernel (`--backend host`), beside containers and copies.

    python3 -m bench.roots [--rounds N] [--count N] [--user NAME] [--quick]

A Debian root is deployed: by copying it, by unpacking it, and by `mica run`, whole and without
documentation, translations and caches; everything is in the page cache or on tmpfs. Then whole runs of
`true` in it: `mica run --rm`, `crun run`, `podman run`, as root and, with `--user`, as a user. At last
`--count` roots are made and removed, eight at a time, and what is left of them is counted. Needs root.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from bench import inside, layers, layout, measure, report
from bench.measure import CACHE
from bench.sandboxes import Home, User, adopt_orphans, census, left, reap

IMAGE = "bench.local/root:latest"
# As in the article that this is measured against.
TRIMMED = ["usr/share/doc", "usr/share/locale", "usr/share/man", "var/cache", "var/lib/dpkg"]
TRIMMED += ["var/lib/apt"]
TRIM = "docs,locales,man,caches,/var/lib/dpkg,/var/lib/apt"
AT_A_TIME = 8
# What of a sandbox's start belongs to its command.
COMMAND = {"exec", "first output"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.roots")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--count", type=int, default=10_000, help="roots made and removed")
    parser.add_argument("--user", help="also as this user, who has subordinate ids")
    parser.add_argument("--quick", action="store_true", help="3 rounds, 100 roots")
    arguments = parser.parse_args()
    if os.geteuid():
        sys.exit("bench.roots: needs root, which the peers need too")
    rounds, count = (3, 100) if arguments.quick else (arguments.rounds, arguments.count)
    host = measure.machine()
    adopt_orphans()
    with contextlib.ExitStack() as stack:
        scratch = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        scratch.chmod(0o755)
        memory = stack.enter_context(tmpfs(scratch / "memory"))
        (scratch / "files").mkdir()
        files = inside.inputs(scratch / "files")
        archive()
        # A user must reach them, too.
        shutil.copytree(CACHE / "root", scratch / "image")
        root, tree = memory / "root.tar", memory / "tree"
        shutil.copy(CACHE / "roots" / "root.tar", root)
        tree.mkdir()
        subprocess.run(["tar", "xf", root, "-C", tree], check=True)
        result = {"rounds": rounds, "image": about(root, tree)}
        result |= {name: measure.package(name) for name in ("crun", "podman", "uidmap")}
        home = stack.enter_context(Home(files, "now", "host"))
        home.mica("load", str(scratch / "image"), "--name", IMAGE)
        result["deployed"] = deployed(memory, root, tree, home, rounds)
        result["whole"] = {"root": whole(scratch / "root", tree, home, None, rounds)}
        if arguments.user:
            result["whole"]["user"] = as_user(arguments.user, scratch, root, files, rounds)
        result["lives"] = lives(home, count)
    measure.save("roots", host, result, is_partial=arguments.quick)
    report.write()


@contextlib.contextmanager
def tmpfs(place: pathlib.Path):
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def archive() -> None:
    """Makes a Debian's root as a tar, the same compressed, and as an image, once."""
    place = CACHE / "roots" / "root.tar"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_suffix(".part.tar")
        options = ["--quiet", "--variant=minbase"]
        words = ["mmdebstrap", *options, layers.SUITE, part, *layers.apt_sources()]
        subprocess.run(words, check=True)
        with place.with_suffix(".tgz").open("wb") as compressed:
            subprocess.run(["gzip", "-c", part], check=True, stdout=compressed)
        digest = layers.sha256(part)
        layout.write(CACHE / "root", [layout.Blob(part, digest, digest, layout.LAYER)])
        part.rename(place)


def about(root: pathlib.Path, tree: pathlib.Path) -> dict:
    entries = sum(1 for _ in tree.rglob("*"))
    return {"bytes": root.stat().st_size, "entries": entries}


def deployed(
    memory: pathlib.Path, root: pathlib.Path, tree: pathlib.Path, home: Home, rounds: int
) -> dict:
    """Seconds until a root is there, by how it is made."""
    compressed, trimmed = memory / "root.tgz", memory / "trimmed.tar"
    shutil.copy(CACHE / "roots" / "root.tgz", compressed)
    without = [f"--exclude=./{path}" for path in TRIMMED]
    subprocess.run(["tar", "cf", trimmed, "-C", tree, *without, "."], check=True)
    place = memory / "deployed"

    def made(*words: str | pathlib.Path) -> float:
        seconds = timed([*words])
        subprocess.run(["rm", "-rf", place], check=True)
        return seconds

    def untarred(source: pathlib.Path) -> float:
        place.mkdir()
        return made("tar", "xf", source, "-C", place)

    contenders: dict[str, Callable[[], object]] = {
        "cp -a": lambda: made("cp", "-a", tree, place),
        "tar xf": lambda: untarred(root),
        "tar xzf": lambda: untarred(compressed),
        "tar xf, trimmed": lambda: untarred(trimmed),
        "mica run": lambda: ready(home),
        "mica run --trim": lambda: ready(home, "--trim", TRIM),
    }
    for contender in contenders.values():
        contender()
    found = measure.interleave(contenders, rounds)
    result = {}
    for who, runs in found.items():
        steps = runs if isinstance(runs[0], dict) else [{"whole": run} for run in runs]
        medians = {name: statistics.median(step[name] for step in steps) for name in steps[0]}
        result[who] = {**medians, "runs": steps}
    return result


def ready(home: Home, *flags: str) -> dict[str, float]:
    """Seconds in mica from an open store to a root that a command can be started in."""
    words = ["run", "--backend", "host", "--rm", "--quiet", "--net", "none", "--pull", "never"]
    command = home.command(*words, *flags, "--timing=json", IMAGE, "true")
    done = subprocess.run(command, env=home.environment, check=True, capture_output=True, text=True)
    line = next(line for line in done.stderr.splitlines() if line.startswith("{"))
    phases = {name: of / 1e3 for name, of in json.loads(line)["phases"].items()}
    return {"whole": sum(of for name, of in phases.items() if name not in COMMAND), **phases}


def whole(
    place: pathlib.Path, tree: pathlib.Path, home: Home, user: User | None, rounds: int
) -> dict:
    """Seconds of whole runs, of each tool that runs here."""
    place.mkdir()
    become = []
    if user:
        user.give(place)
        become = user.become
    words = ["run", "--backend", "host", "--rm", "--quiet", "--net", "none", "--pull", "never"]
    ours = home.command(*words, IMAGE, "true")
    contenders = {"mica run": lambda: timed(ours, env=home.environment)}
    # Without a control group where the tool can't make one here.
    options = ["--rm", "--network", "none", "--log-driver", "none", "--cgroups", "disabled"]
    options += ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
    manager = ["--cgroup-manager", "disabled"] if user else []
    peers = {
        "crun run": ["crun", *manager, "run", "-b", str(place), f"bench-{os.getpid()}"],
        "podman run": ["podman", "run", *options, "--rootfs", f"{tree}:O", "true"],
    }
    for who, command in peers.items():
        if not shutil.which(command[0]):
            continue
        try:
            if command[0] == "crun":
                bundle(place, tree, become)
            timed([*become, *command], cwd=place)
        except subprocess.CalledProcessError as failure:
            print(f"bench.roots: no comparison with {who}: {failure}", file=sys.stderr)
            continue
        contenders[who] = lambda command=command: timed([*become, *command], cwd=place)
    contenders["mica run"]()
    found = measure.interleave(contenders, rounds)
    return {who: {"median": statistics.median(runs), "runs": runs} for who, runs in found.items()}


def bundle(place: pathlib.Path, tree: pathlib.Path, become: list[str]) -> None:
    """A bundle for crun, that runs `true` in a tree."""
    kind = ["--rootless"] if become else []
    subprocess.run([*become, "crun", "spec", *kind], cwd=place, check=True)
    file = place / "config.json"
    config = json.loads(file.read_text())
    config["process"].update(terminal=False, args=["true"])
    config["root"]["path"] = str(tree)
    file.write_text(json.dumps(config))


def as_user(
    name: str, scratch: pathlib.Path, root: pathlib.Path, files: pathlib.Path, rounds: int
) -> dict:
    """The same by a user, with a tree and a store of their own."""
    user = User(name, scratch / "runtime")
    with tmpfs(scratch / "user-memory") as memory, Home(files, "now", "host", user) as home:
        user.give(memory)
        tree = memory / "tree"
        subprocess.run([*user.become, "mkdir", tree], check=True)
        unpack = ["tar", "xf", root, "-C", tree, "--exclude=./dev/*"]
        subprocess.run([*user.become, *unpack], check=True)
        home.mica("load", str(scratch / "image"), "--name", IMAGE)
        return whole(scratch / "user", tree, home, user, rounds)


def timed(command: list, **options) -> float:
    start = time.perf_counter()
    subprocess.run(
        command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, **options
    )
    return time.perf_counter() - start


def lives(home: Home, count: int) -> dict:
    """Makes and removes so many roots; seconds, and what is left of them."""
    words = ["run", "--backend", "host", "--rm", "--quiet", "--pull", "never"]
    for _ in range(AT_A_TIME):
        home.mica(*words, IMAGE, "true")
    before, memory = census(home), in_use()
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        for part in range(0, count, 1000):
            some = range(part, min(part + 1000, count))
            for done in [pool.submit(home.mica, *words, IMAGE, "true") for _ in some]:
                done.result()
            # What outlived its `mica run` is a child of this process, and a zombie once it has ended.
            reap()
    took = time.monotonic() - begun
    remains = left(home, before)
    # The log of events goes on in a second file once the first is full.
    events = str(home.store / "events")
    remains["files"] = [path for path in remains["files"] if not path.startswith(events)]
    return {"count": count, "seconds": took, "left": remains, "memory": in_use() - memory}


def in_use() -> int:
    """Bytes of memory that processes, tmpfs and the kernel have, but for what it may drop."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    fields = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    kinds = ["AnonPages", "Shmem", "SUnreclaim", "KernelStack", "PageTables", "Percpu"]
    return sum(fields[kind] for kind in kinds)


if __name__ == "__main__":
    main()
