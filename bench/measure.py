"""Running a command and counting what it took; rounds, medians, results on disk."""

import contextlib
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Self

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "bench" / "results"
CACHE = (
    pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    / "micabox"
    / "bench"
)


@dataclass
class Cost:
    """What one run of a command took, its children included."""

    wall: float  # seconds
    user: float  # seconds of CPU
    system: float  # seconds of CPU
    rss: int  # peak resident set of the largest process, bytes

    @property
    def cpu(self) -> float:
        return self.user + self.system


# Linux hands the high-water mark of a process on to what it starts, so a benchmark of
# 20 MiB would see 20 MiB in everything. This stands in between and is as small as Python gets.
LAUNCHER = """
import os, sys, time
if sys.argv[1]:
    with open(sys.argv[1], "w") as group:
        group.write("0")
start = time.perf_counter()
pid = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(pid, 0)
wall = time.perf_counter() - start
with open(3, "w") as out:
    print(os.waitstatus_to_exitcode(status), wall, *usage[:3], file=out)
"""


def run(command: list[str | os.PathLike], **options) -> Cost:
    """Runs `command` to its end; raises if it fails.

    Where `Group` is usable, CPU is that of all processes; otherwise, of those waited for.
    A peak resident set below that of the launcher can't be seen: see `rss_floor`.
    """
    words = [os.fspath(word) for word in command]
    # What earlier runs left to write back must not be this one's work.
    os.sync()
    options.setdefault("stdout", subprocess.DEVNULL)
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(Group("run")) if Group.usable() else None
        cost = launch(words, group, options)
        if group:
            group.empty()
            cost.user, cost.system = group.cpu()
    return cost


def launch(words: list[str], group: "Group | None", options: dict) -> Cost:
    """Does the work of `run`; CPU is that of processes that were waited for."""
    launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER]
    launcher.append(str(group.path / "cgroup.procs") if group else "")
    with tempfile.TemporaryFile("w+") as report:
        subprocess.run(
            ["/bin/sh", "-c", f'exec "$@" 3>&{report.fileno()}', "sh", *launcher, *words],
            check=True,
            pass_fds=[report.fileno()],
            **options,
        )
        report.seek(0)
        code, wall, user, system, rss = report.read().split()
    if code != "0":
        raise subprocess.CalledProcessError(int(code), words)
    return Cost(float(wall), float(user), float(system), int(rss) * 1024)


class Group:
    """A control group: counts the CPU time of all processes in it, also of those that are not
    waited for, as `mica`'s workers and the children of a daemon. Needs root.
    """

    V1 = pathlib.Path("/sys/fs/cgroup/cpuacct")
    V2 = pathlib.Path("/sys/fs/cgroup")

    def __init__(self, name: str):
        self.path = self.parent() / f"micabox-bench-{name}-{os.getpid()}"

    @classmethod
    def parent(cls) -> pathlib.Path:
        return cls.V1 if cls.V1.is_dir() else cls.V2

    @classmethod
    def usable(cls) -> bool:
        return os.geteuid() == 0 and os.access(cls.parent() / "cgroup.procs", os.W_OK)

    def __enter__(self) -> Self:
        self.path.mkdir()
        return self

    def __exit__(self, *_) -> None:
        # The last processes may still be ending.
        for _ in range(100):
            try:
                return self.path.rmdir()
            except OSError:
                time.sleep(0.05)
        self.path.rmdir()

    def command(self, words: list[str | os.PathLike]) -> list[str]:
        """The command that runs `words` in the group."""
        enter = f'echo $$ >{self.path}/cgroup.procs && exec "$@"'
        return ["/bin/sh", "-c", enter, "sh", *map(os.fspath, words)]

    def empty(self) -> None:
        """Waits until all processes have ended."""
        while (self.path / "cgroup.procs").read_text():
            time.sleep(0.005)

    def cpu(self) -> tuple[float, float]:
        """Seconds of CPU so far: of programs, and of the kernel for them."""
        if (self.path / "cpuacct.usage_user").exists():
            of = [int((self.path / f"cpuacct.usage_{who}").read_text()) for who in ("user", "sys")]
            return of[0] / 1e9, of[1] / 1e9
        fields = dict(line.split() for line in (self.path / "cpu.stat").read_text().splitlines())
        return int(fields["user_usec"]) / 1e6, int(fields["system_usec"]) / 1e6


def rss_floor() -> int:
    """What `run` reports as the peak resident set of a process that needs nothing, bytes."""
    return run(["true"]).rss


def interleave(
    contenders: dict[str, Callable[[], object]], rounds: int, log=sys.stderr
) -> dict[str, list]:
    """Runs every contender once a round, in an order that rotates from round to round,
    so that a slow minute of the machine hits all of them and none always goes first.
    """
    names = list(contenders)
    results = {name: [] for name in names}
    for turn in range(rounds):
        at = turn % len(names)
        for name in names[at:] + names[:at]:
            results[name].append(contenders[name]())
            print(f"  round {turn + 1}/{rounds}  {name}: {brief(results[name][-1])}", file=log)
    return results


def brief(value) -> str:
    """One value on a line of the progress log."""
    if isinstance(value, Cost):
        return f"{value.wall:.2f} s, CPU {value.cpu:.2f} s, {value.rss / 2**20:.1f} MiB"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def summary(costs: list[Cost]) -> dict:
    """Medians, and the raw runs beside them."""
    return {
        "wall": statistics.median(cost.wall for cost in costs),
        "cpu": statistics.median(cost.cpu for cost in costs),
        "rss": max(cost.rss for cost in costs),
        "runs": [asdict(cost) for cost in costs],
    }


def machine() -> dict:
    """What the numbers were measured on."""
    model = "unknown"
    flags: set[str] = set()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            model = value.strip()
        elif name.strip() == "flags":
            flags = set(value.split())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": model,
        "cpus": os.cpu_count(),
        "sha_ni": "sha_ni" in flags,
        "virtualisation": bool(flags & {"vmx", "svm"}),
        "memory_gib": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "load_before": os.getloadavg()[0],
    }


def has_kvm(host: dict) -> bool:
    """Whether our monitor runs on a machine."""
    return host["virtualisation"] and os.access("/dev/kvm", os.W_OK)


def commit() -> str:
    """The commit that was measured; `+` when tracked files differ from it."""

    def git(*words: str) -> str:
        command = ["git", "-C", REPOSITORY, *words]
        return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "crates", "Cargo.lock")
    return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")


def package(name: str) -> str:
    """The version of an installed Debian package, "" without it."""
    command = ["dpkg-query", "-W", "-f", "${Version}", name]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


@dataclass
class FirstOutput:
    """When a command said something, and what it said about itself at its end."""

    seconds: float
    messages: str  # its standard error

    def __str__(self) -> str:
        return f"{self.seconds * 1e3:.0f} ms"


def first_output(
    command: list[str | os.PathLike], expect: bytes, limit: float = 120, **options
) -> FirstOutput:
    """Seconds from starting `command` until `expect` is in its output. Waits for its end."""
    start = time.perf_counter()
    with (
        tempfile.TemporaryFile() as messages,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=messages, **options
        ) as child,
    ):
        overdue = threading.Timer(limit, child.kill)
        overdue.start()
        seen, seconds = b"", None
        while chunk := os.read(child.stdout.fileno(), 4096):
            seen += chunk
            if seconds is None and expect in seen:
                seconds = time.perf_counter() - start
        child.wait()
        overdue.cancel()
        messages.seek(0)
        said = messages.read().decode(errors="replace")
    if seconds is None:
        raise RuntimeError(f"{command}: no {expect!r} in {seen[-2000:]!r}; {said[-2000:]}")
    return FirstOutput(seconds, said)


def save(name: str, host: dict, result: dict, *, is_partial: bool = False) -> pathlib.Path:
    """Writes `results/NAME.json`, or `results/NAME-quick.json` for a short run, so that the whole
    result stays; `host` is `machine()` from before the first round.
    """
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}{'-quick' if is_partial else ''}.json"
    document = {
        "benchmark": name,
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "machine": host,
        **result,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def amend(name: str, part: dict) -> None:
    """Replaces parts of `results/NAME.json`."""
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**(load(name) or {}), **part}, indent=1) + "\n")


def save_backends(name: str, host: dict, found: dict, *, is_partial: bool = False) -> None:
    """Writes what was measured of some backends; of others what was there stays."""
    about = {"date": datetime.date.today().isoformat(), "commit": commit(), "machine": host}
    about["emulated"] = not has_kvm(host)
    before = {} if is_partial else (load(name) or {}).get("backends", {})
    backends = before | {backend: about | part for backend, part in found.items()}
    path = RESULTS / f"{name}{'-quick' if is_partial else ''}.json"
    path.write_text(json.dumps({"benchmark": name, "backends": backends}, indent=1) + "\n")


def load(name: str) -> dict | None:
    """The saved results of a benchmark, None if it never ran."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None
