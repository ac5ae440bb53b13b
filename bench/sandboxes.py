"""A store of its own with one image, whose userland is busybox, and sandboxes of it."""

import contextlib
import ctypes
import json
import os
import pathlib
import pwd
import shutil
import subprocess
import tempfile
import time
from typing import Self

IMAGE = "mica-nested:latest"
MIB = 2**20
PR_SET_CHILD_SUBREAPER = 36


class User:
    """A user that root becomes to run a command."""

    def __init__(self, name: str, runtime: pathlib.Path):
        self.entry = pwd.getpwnam(name)
        runtime.mkdir(mode=0o700)
        self.give(runtime)
        user, group = self.entry.pw_uid, self.entry.pw_gid
        change = ["setpriv", f"--reuid={user}", f"--regid={group}", "--init-groups"]
        places = [f"HOME={self.entry.pw_dir}", f"XDG_RUNTIME_DIR={runtime}"]
        self.become = [*change, "env", *places]

    def give(self, path: pathlib.Path) -> None:
        shutil.chown(path, self.entry.pw_uid, self.entry.pw_gid)


class Home:
    """A store, and the mica that uses it; nothing is left of it at the end."""

    def __init__(self, files: pathlib.Path, version: str, backend: str, user: User | None = None):
        self.program = files / version / "mica"
        self.backend = backend
        self.become = user.become if user else []
        self.place = tempfile.TemporaryDirectory(prefix="micabox-bench-")
        if user:
            user.give(pathlib.Path(self.place.name))
        self.store = pathlib.Path(self.place.name) / "store"
        self.environment = {
            **os.environ,
            "MICABOX_HOME": str(self.store),
            "MICABOX_GUEST": str(files / version / "guest"),
            "MICABOX_CONFIG": "/dev/null",
        }
        self.mica("load", str(files / "box.tar"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.remove_all()
        self.place.cleanup()

    def remove_all(self) -> None:
        for record in json.loads(self.mica("ps", "-a", "--json") or "[]"):
            with contextlib.suppress(RuntimeError):
                self.mica("rm", "-f", record["id"])

    def command(self, *words: str) -> list[str]:
        return [*self.become, str(self.program), *words]

    def mica(self, *words: str, **options) -> str:
        """What mica prints; raises with what it says when it fails."""
        options.setdefault("stdin", subprocess.DEVNULL)
        done = subprocess.run(
            self.command(*words),
            env=self.environment,
            capture_output=True,
            check=False,
            **options,
        )
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise RuntimeError(f"mica {' '.join(words)}: {done.returncode}: {said}")
        return done.stdout.decode(errors="replace")

    def start(self, name: str, *flags: str) -> str:
        """A sandbox without a command; its ID."""
        fixed = ["--name", name, "--backend", self.backend, "--pull", "never"]
        return self.mica("run", "-d", "--idle", *fixed, *flags, IMAGE).strip()

    def processes(self, identity: str) -> list[int]:
        """The processes of a sandbox that runs: its owner first."""
        record = self.store / "sandboxes" / identity / "state.json"
        return tree(json.loads(record.read_text())["owner"]["pid"])


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for thread in pathlib.Path(f"/proc/{one}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
    return found


def memory(pids: list[int]) -> dict[str, int]:
    """Bytes of the processes: resident, proportional and private."""
    sums = {"rss": 0, "pss": 0, "private": 0}
    fields = {"Rss": "rss", "Pss": "pss", "Private_Clean": "private", "Private_Dirty": "private"}
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
                name, value = line.split(":")
                if name in fields:
                    sums[fields[name]] += int(value.split()[0]) * 1024
    return sums


def adopt_orphans() -> None:
    """What a sandbox leaves running becomes a child of this process, where it can be counted."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def census(home: Home) -> dict[str, list[str]]:
    """What there is of sandboxes: files, processes below this one, control groups, sockets, mounts."""
    reap()
    store = str(home.store)
    places = [home.store, *(path for path in map(pathlib.Path, ("/dev/shm", "/run")))]
    files = [str(path) for path in home.store.rglob("*")]
    for place in places[1:]:
        with contextlib.suppress(OSError):
            files += [str(path) for path in place.iterdir() if "mica" in path.name]
    groups = pathlib.Path("/sys/fs/cgroup").rglob("micabox-*")
    sockets = pathlib.Path("/proc/net/unix").read_text().splitlines()
    mounts = pathlib.Path("/proc/self/mounts").read_text().splitlines()
    return {
        "files": sorted(files),
        "processes": [name_of(pid) for pid in tree(os.getpid())[1:]],
        "control groups": [str(path) for path in groups if path.is_dir()],
        "sockets": [line for line in sockets if store in line],
        "mounts": [line for line in mounts if store in line],
    }


def name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return f"{pid} {line.decode(errors='replace')}"
    return str(pid)


def left(home: Home, before: dict[str, list[str]], patience: float = 60) -> dict[str, list[str]]:
    """What there is that was not there before, once what is ending has ended."""
    end = time.monotonic() + patience
    while True:
        now = census(home)
        more = {kind: sorted(set(found) - set(before[kind])) for kind, found in now.items()}
        if not any(more.values()) or time.monotonic() > end:
            return more
        time.sleep(0.2)


def reap() -> None:
    """Waits for orphans that have ended. Only while no command of ours runs."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def share(values: list[float], part: float) -> float:
    """The value that so many of them don't exceed."""
    return sorted(values)[max(0, -(-len(values) * int(part * 100) // 100) - 1)]
