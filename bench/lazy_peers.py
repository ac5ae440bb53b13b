"""What else starts a program of an image that is not here: containerd with each of its snapshotters, and one of others
that reads layers before they are here.

Each peer is a function of the image's name behind the line, a directory of its own, and the line. It pulls the image,
mounts its root, and runs the program there in `chroot`: without a container, which would only add to its time. It gives
what that took, and what came over the line meanwhile. One that can't run on a machine gives the reason.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import time

from bench import containerd, measure
from bench.line import Line
from bench.measure import Cost, Group
from bench.packed_peers import Impossible, wipe

# SOCI's daemon and its client, at a version that is known to work. Its module of programs names the library's by a
# path of its own tree; the same version of that is on Go's proxy.
SOCI = "github.com/awslabs/soci-snapshotter"
SOCI_PROGRAMS = "v0.0.0-20260930233240-61147fe7c929"
SOCI_LIBRARY = "v0.16.1"

# It asks containerd for the manifest of a layer that is too small for an index, for seconds where there is none.
SETTINGS = """
[content_store]
  containerd_address = "{work}/socket"
"""

PROXY = """
[proxy_plugins.soci]
  type = "snapshot"
  address = "{work}/soci.sock"
  [proxy_plugins.soci.exports]
    root = "{work}/soci"
    enable_remote_snapshot_annotations = "true"
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux/amd64"
  snapshotter = "soci"
"""


def started(
    snapshotter: str, name: str, work: pathlib.Path, line: Line, program: list[str], daemon
) -> tuple[Cost, int]:
    """Runs the program on the image's root, once `daemon` gives a client."""
    root = work / "tree"
    root.mkdir()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with Group("containerd") as group:
        with daemon(group) as client:
            pull = [*client, "image", "pull", "--plain-http", "--snapshotter", snapshotter, name]
            mount = [*client, "image", "mount", "--snapshotter", snapshotter, name, root]
            os.sync()
            before, received = group.cpu(), line.received
            begun = time.perf_counter()
            for words in (pull, mount, ["chroot", root, *program]):
                done = subprocess.run(group.command(words), check=False, **quiet)
                if done.returncode != 0:
                    raise Impossible((done.stderr.strip().splitlines() or ["it failed"])[-1][:200])
            wall = time.perf_counter() - begun
            received = line.received - received
            user, system = (now - then for now, then in zip(group.cpu(), before, strict=True))
            subprocess.run(["umount", "-R", root], check=False)
        group.empty()
    return Cost(wall, user, system, 0), received


def snapshotter(name: str, image: str, work: pathlib.Path, line: Line, program: list[str]):
    has_erofs = name == "erofs"
    try:
        containerd.programs(has_erofs=has_erofs)
    except (subprocess.CalledProcessError, SystemExit):
        what = "a mkfs.erofs of 1.8.2 or newer" if has_erofs else f"its {containerd.VERSION}"
        raise Impossible(f"{what} is not here, and could not be built") from None

    def daemon(group: Group):
        return containerd.daemon(group, work, has_erofs=has_erofs)

    return started(name, image, work, line, program, daemon)


def overlayfs(image: str, work: pathlib.Path, line: Line, program: list[str]):
    return snapshotter("overlayfs", image, work, line, program)


def erofs(image: str, work: pathlib.Path, line: Line, program: list[str]):
    return snapshotter("erofs", image, work, line, program)


def soci_programs() -> pathlib.Path:
    """The directory of SOCI's programs, built if the cache lacks them."""
    place = measure.CACHE / f"soci-{SOCI_LIBRARY}"
    if (place / "soci-snapshotter-grpc").exists():
        return place
    if containerd.go_version() < (1, 21):
        raise Impossible("Go 1.21 or newer is not here")
    source = place.with_name(f"{place.name}-source")
    shutil.rmtree(source, ignore_errors=True)
    go = {"capture_output": True, "text": True}
    try:
        words = ["go", "mod", "download", f"{SOCI}/cmd@{SOCI_PROGRAMS}"]
        subprocess.run(words, check=True, **go)
        words = ["go", "env", "GOMODCACHE"]
        cache = pathlib.Path(subprocess.run(words, check=True, **go).stdout.strip())
        shutil.copytree(cache / f"{SOCI}/cmd@{SOCI_PROGRAMS}", source)
        subprocess.run(["chmod", "-R", "u+w", source], check=True)
        edits = [
            f"-replace={SOCI}@{old}={SOCI}@{SOCI_LIBRARY}" for old in ("v0.0.0", "v0.0.0-local")
        ]
        subprocess.run(["go", "mod", "edit", *edits], cwd=source, check=True, **go)
        for name in ("soci", "soci-snapshotter-grpc"):
            words = ["go", "build", "-mod=mod", "-o", place / name, f"./{name}"]
            subprocess.run(words, cwd=source, check=True, **go)
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["its Go module could not be built"])[-1]
        raise Impossible(last[:200]) from None
    finally:
        shutil.rmtree(source, ignore_errors=True)
    return place


@contextlib.contextmanager
def soci_daemon(group: Group, place: pathlib.Path, work: pathlib.Path):
    """SOCI's snapshotter and a containerd that uses it; gives the command line of its client."""
    config = work / "soci.toml"
    config.write_text(SETTINGS.format(work=work))
    words = [place / "soci-snapshotter-grpc", "--address", work / "soci.sock"]
    words += ["--root", work / "soci", "--config", config]
    with (work / "soci.log").open("w") as log:
        server = subprocess.Popen(group.command(words), stdout=log, stderr=log)
    try:
        while not (work / "soci.sock").exists():
            if server.poll() is not None:
                lines = (work / "soci.log").read_text().strip().splitlines() or ["it ended"]
                raise Impossible(lines[-1][:200])
            time.sleep(0.05)
        with containerd.daemon(group, work, has_erofs=False, more=PROXY) as client:
            yield client
    finally:
        server.terminate()
        server.wait()


def soci(image: str, work: pathlib.Path, line: Line, program: list[str]):
    place = soci_programs()

    def daemon(group: Group):
        return soci_daemon(group, place, work)

    return started("soci", image, work, line, program, daemon)


# What each needs is in the registry under this name.
PEERS = {
    "containerd, overlayfs": (overlayfs, "bench/archives:1"),
    "containerd, EROFS": (erofs, "bench/archives:1"),
    f"SOCI {SOCI_LIBRARY}": (soci, "bench/soci:1"),
}


def push(source: pathlib.Path, host: str, work: pathlib.Path) -> None:
    """Puts the image of a layout into the registry, as each peer wants it."""
    copy = ["skopeo", "copy", "-q", "--all", "--dest-tls-verify=false"]
    subprocess.run([*copy, f"oci:{source}", f"docker://{host}/bench/archives:1"], check=True)
    try:
        converted = work / "soci-layout"
        words = [soci_programs() / "soci", "convert", "--standalone", "--format", "oci-dir"]
        subprocess.run([*words, source, converted], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([*copy, f"oci:{converted}", f"docker://{host}/bench/soci:1"], check=True)
    except (Impossible, subprocess.CalledProcessError, OSError) as reason:
        # The peer has the reason.
        print(f"lazy: SOCI: {reason}", file=sys.stderr)


def compare(
    work: pathlib.Path, line: Line, program: list[str], rounds: int
) -> tuple[dict, dict, dict]:
    """What each peer takes and receives; of those that can't run, the reasons."""
    costs, received, missing = {}, {}, {}
    for name, (peer, image) in PEERS.items():
        runs = []
        try:
            for _ in range(rounds):
                place = work / peer.__name__
                place.mkdir()
                try:
                    cost, received[name] = peer(f"{line.host}/{image}", place, line, program)
                finally:
                    with contextlib.suppress(OSError):
                        wipe(place)
                        place.rmdir()
                print(f"  {name}: {measure.brief(cost)}", file=sys.stderr)
                runs.append(cost)
            costs[name] = measure.summary(runs)
        except (Impossible, RuntimeError, subprocess.CalledProcessError, OSError) as reason:
            received.pop(name, None)
            lines = str(reason).strip().splitlines() or [type(reason).__name__]
            missing[name] = lines[-1][:200]
    return costs, received, missing
