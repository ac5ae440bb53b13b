"""containerd, as a peer of `mica pull`: built once, with a fresh state for every pull.

Its EROFS differ needs a `mkfs.erofs` that reads archives as they come, without sorting
their data (1.8.2). Where the machine's is older, that of Debian unstable is built as well.
"""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from bench.measure import CACHE, REPOSITORY, Cost, Group

VERSION = "v2.4.2"
MODULE = "github.com/containerd/containerd/v2"
PLACE = CACHE / "containerd"

# What a pull to overlayfs needs; the rest only takes time to start.
PLAIN = """\
version = 3
root = "{work}/root"
state = "{work}/state"
disabled_plugins = [
  "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri",
]
[grpc]
  address = "{work}/socket"
"""

# What a pull to EROFS images needs as well.
CONFIG = (
    PLAIN
    + """\
[plugins."io.containerd.service.v1.diff-service"]
  default = ["erofs", "walking"]
[plugins."io.containerd.differ.v1.erofs"]
  mkfs_options = ["-T0", "--mkfs-time", "--sort=none"]
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux/amd64"
  snapshotter = "erofs"
  differ = "erofs"
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux/amd64"
  snapshotter = "overlayfs"
  differ = "walking"
"""
)


def programs(*, has_erofs: bool = True) -> pathlib.Path:
    """The directory of containerd, ctr and mkfs.erofs, built if the cache lacks them."""
    place = PLACE / VERSION
    if not (place / "ctr").exists():
        shutil.rmtree(PLACE, ignore_errors=True)
        place.mkdir(parents=True)
        build_containerd(place)
    if has_erofs and not (place / "mkfs.erofs").exists():
        (place / "mkfs.erofs").unlink(missing_ok=True)
        build_mkfs(place)
    return place


def build_containerd(place: pathlib.Path) -> None:
    print(f"building containerd {VERSION} (once)", file=sys.stderr)
    if go_version() < (1, 21):
        # From there on, Go fetches the version that a module asks for.
        sys.exit("bench: containerd is built with Go, 1.21 or newer: https://go.dev/doc/install")
    words = [f"{MODULE}/cmd/{name}@{VERSION}" for name in ("containerd", "ctr")]
    environment = {**os.environ, "GOBIN": str(place)}
    subprocess.run(["go", "install", *words], env=environment, check=True)


def build_mkfs(place: pathlib.Path) -> None:
    """Makes `mkfs.erofs` the system's if that is new enough, else that of Debian unstable."""
    system = shutil.which("mkfs.erofs")
    if system and mkfs_version(system) >= (1, 8, 2):
        (place / "mkfs.erofs").symlink_to(system)
        return
    built = subprocess.check_output([REPOSITORY / "scripts" / "erofs-utils"], text=True).strip()
    (place / "mkfs.erofs").symlink_to(pathlib.Path(built) / "mkfs.erofs")


def mkfs_version(program: str | os.PathLike) -> tuple[int, ...]:
    return version(program, "-V")


def go_version() -> tuple[int, ...]:
    return version("go", "version") if shutil.which("go") else ()


def version(*command: str | os.PathLike) -> tuple[int, ...]:
    """The first version in what a command prints; empty if there is none."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", done.stdout + done.stderr)
    return tuple(int(part or 0) for part in found.groups()) if found else ()


@contextlib.contextmanager
def daemon(group: Group, work: pathlib.Path, *, has_erofs: bool = True, more: str = ""):
    """containerd with an empty state below `work`, configured with `more`; gives the command line of its client."""
    place = programs(has_erofs=has_erofs)
    config = work / "config.toml"
    config.write_text(((CONFIG if has_erofs else PLAIN) + more).format(work=work))
    environment = {**os.environ, "PATH": f"{place}:{os.environ['PATH']}"}
    client = [str(place / "ctr"), "--address", f"{work}/socket"]
    with (work / "log").open("w") as log:
        server = subprocess.Popen(
            group.command([place / "containerd", "--config", config]),
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        for _ in range(200):
            ready = subprocess.run([*client, "version"], check=False, capture_output=True)
            if ready.returncode == 0:
                break
            time.sleep(0.1)
        else:
            raise RuntimeError((work / "log").read_text())
        yield client
    finally:
        server.terminate()
        server.wait()


def pull(reference: str, snapshotter: str, work: pathlib.Path) -> Cost:
    """Pulls an image from a registry without TLS and unpacks it, in a new containerd."""
    with Group("containerd") as group:
        with daemon(group, work) as client:
            plugins = subprocess.run(
                [*client, "plugins", "ls"], check=True, capture_output=True, text=True
            ).stdout
            for kind in ("differ", "snapshotter") if snapshotter == "erofs" else ():
                works = rf"(?m)io\.containerd\.{kind}\.v1\s+erofs\s.*\bok\s*$"
                if not re.search(works, plugins):
                    raise RuntimeError(f"containerd has no EROFS {kind}:\n{plugins}")
            command = [*client, "image", "pull", "--plain-http", "--snapshotter", snapshotter]
            os.sync()
            before = group.cpu()
            start = time.perf_counter()
            subprocess.run(
                group.command([*command, reference]), check=True, stdout=subprocess.DEVNULL
            )
            wall = time.perf_counter() - start
            user, system = (now - then for now, then in zip(group.cpu(), before, strict=True))
        group.empty()
    return Cost(wall, user, system, 0)
