"""What keeps the same images beside a packed store: other stores of containers, and programs that cut by content.

Each peer is a function of the images, by name with their layers, and a directory of its own. It gives what that takes on
disk and the time of all of it. One that can't run on a machine gives the reason.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import time

from bench import containerd, layout, measure
from bench.measure import Cost, Group

Images = dict[str, list[layout.Blob]]

# A version that is known to work, for Go's tools to fetch.
DESYNC = "github.com/folbricht/desync/cmd/desync@v0.9.6"


class Impossible(Exception):
    """A peer can't run here, with the reason."""


def on_disk(path: pathlib.Path) -> int:
    """What files take, each once, whatever the number of its names."""
    stats = (file.lstat() for file in path.rglob("*"))
    return sum({(stat.st_dev, stat.st_ino): stat.st_blocks * 512 for stat in stats}.values())


def archives(images: Images) -> list[str]:
    """The layers' archives, each once."""
    found = {blob.path.with_suffix("") for blobs in images.values() for blob in blobs}
    return [str(path) for path in sorted(found)]


def program(name: str, package: str) -> str:
    found = shutil.which(name)
    if not found:
        raise Impossible(f"Debian's package {package} is not installed")
    return found


def total(costs: list[Cost]) -> Cost:
    """Several runs, one after the other."""
    return Cost(
        sum(cost.wall for cost in costs),
        sum(cost.user for cost in costs),
        sum(cost.system for cost in costs),
        max(cost.rss for cost in costs),
    )


def quietly(command: list, **options) -> Cost:
    return measure.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)


def borg(images: Images, work: pathlib.Path) -> Cost:
    borg = program("borg", "borgbackup")
    env = {**os.environ, "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes", "HOME": str(work)}
    env["BORG_BASE_DIR"] = f"{work}-cache"
    subprocess.run([borg, "init", "-e", "none", work / "repository"], check=True, env=env)
    words = [borg, "create", "-C", "zstd,3", f"{work}/repository::all", *archives(images)]
    return quietly(words, env=env)


def restic(images: Images, work: pathlib.Path) -> Cost:
    restic = program("restic", "restic")
    cache = f"{work}-cache"
    env = {**os.environ, "RESTIC_PASSWORD": "bench", "RESTIC_CACHE_DIR": cache}
    words = [restic, "-r", str(work / "repository")]
    subprocess.run([*words, "init"], check=True, env=env, stdout=subprocess.DEVNULL)
    return quietly([*words, "backup", "--compression", "auto", *archives(images)], env=env)


def chunked(make: list[str], images: Images, work: pathlib.Path) -> Cost:
    """Cuts each archive into a store of chunks."""
    costs = []
    for number, archive in enumerate(archives(images)):
        costs.append(quietly([*make, work / f"{number}.caibx", archive]))
    return total(costs)


def casync(images: Images, work: pathlib.Path) -> Cost:
    make = [program("casync", "casync"), "make", f"--store={work}/store"]
    return chunked(make, images, work)


def desync(images: Images, work: pathlib.Path) -> Cost:
    place = measure.CACHE / "desync"
    if not (place / "desync").exists():
        go = program("go", "golang-go")
        environment = {**os.environ, "GOBIN": str(place)}
        built = subprocess.run(
            [go, "install", DESYNC], env=environment, check=False, capture_output=True, text=True
        )
        if built.returncode != 0:
            raise Impossible("its Go module could not be fetched or built")
    (work / "store").mkdir()
    return chunked([str(place / "desync"), "make", "-s", f"{work}/store"], images, work)


def containers_storage(driver: str, images: Images, work: pathlib.Path) -> Cost:
    """Copies each image from a layout, as podman and buildah keep it."""
    skopeo = program("skopeo", "skopeo")
    place = f"[{driver}@{work}/root+{work}/run]"
    source = work.with_name(f"{work.name}-layout")
    costs = []
    for name, blobs in images.items():
        layout.write(source, blobs)
        target = f"containers-storage:{place}bench.local/{name}:latest"
        words = [skopeo, "copy", "-q", f"oci:{source}:{layout.TAG}", target]
        if not costs:
            tried = subprocess.run(words, check=False, capture_output=True, text=True)
            if tried.returncode != 0:
                last = (tried.stderr.strip().splitlines() or ["it failed"])[-1]
                raise Impossible(last.split("msg=")[-1].strip('"'))
            wipe(work)
        costs.append(quietly(words))
    return total(costs)


def snapshotter(name: str, images: Images, work: pathlib.Path) -> Cost:
    """Imports each image from a layout into one containerd, which unpacks it."""
    try:
        containerd.programs(has_erofs=name == "erofs")
    except (subprocess.CalledProcessError, SystemExit):
        what = "a mkfs.erofs of 1.8.2 or newer" if name == "erofs" else f"its {containerd.VERSION}"
        raise Impossible(f"{what} is not here, and could not be built") from None
    source = work.with_name(f"{work.name}-layout")
    archive = work.with_name(f"{work.name}.tar")
    with Group("containerd") as group:
        with containerd.daemon(group, work, has_erofs=name == "erofs") as client:
            plugins = subprocess.run(
                [*client, "plugins", "ls"], check=True, capture_output=True, text=True
            ).stdout
            lines = [line.split() for line in plugins.splitlines()]
            for kind in ("snapshotter", "differ") if name == "erofs" else ("snapshotter",):
                wanted = f"io.containerd.{kind}.v1"
                if not any(line[:2] == [wanted, name] and line[-1] == "ok" for line in lines):
                    raise Impossible(f"containerd {containerd.VERSION} has no {kind} {name} here")
            wall, before = 0.0, group.cpu()
            for number, blobs in enumerate(images.values()):
                layout.write(source, blobs)
                subprocess.run(["tar", "-cf", archive, "-C", source, "."], check=True)
                words = [*client, "image", "import", "--snapshotter", name]
                words += ["--base-name", f"bench.local/{number}", archive]
                os.sync()
                begun = time.perf_counter()
                quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                subprocess.run(group.command(words), check=True, **quiet)
                os.sync()
                wall += time.perf_counter() - begun
            user, system = (now - then for now, then in zip(group.cpu(), before, strict=True))
        group.empty()
    return Cost(wall, user, system, 0)


def wipe(place: pathlib.Path) -> None:
    """Empties a directory, where programs may have left mounts."""
    mounts = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4] for line in mounts]
    for point in sorted(points, reverse=True):
        if point.startswith(f"{place}/"):
            subprocess.run(["umount", "-l", point], check=False)
    for entry in place.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def overlay(images: Images, work: pathlib.Path) -> Cost:
    return containers_storage("overlay", images, work)


def vfs(images: Images, work: pathlib.Path) -> Cost:
    return containers_storage("vfs", images, work)


def overlayfs(images: Images, work: pathlib.Path) -> Cost:
    return snapshotter("overlayfs", images, work)


def erofs(images: Images, work: pathlib.Path) -> Cost:
    return snapshotter("erofs", images, work)


PEERS = {
    "borg, of the archives": borg,
    "restic, of the archives": restic,
    "casync, of the archives": casync,
    "desync, of the archives": desync,
    "containers-storage, overlay": overlay,
    "containers-storage, vfs": vfs,
    "containerd, overlayfs, with its blobs": overlayfs,
    "containerd, EROFS, with its blobs": erofs,
}


def compare(images: Images, work: pathlib.Path) -> dict[str, dict]:
    """What each peer takes; of one that can't run, the reason."""
    result = {}
    for name, peer in PEERS.items():
        place = work / peer.__name__
        place.mkdir()
        print(f"packed: {name}", flush=True)
        try:
            cost = peer(images, place)
            result[name] = {"size": on_disk(place), "cpu": cost.cpu, "wall": cost.wall}
        except Impossible as reason:
            result[name] = {"reason": str(reason)}
        except (subprocess.CalledProcessError, RuntimeError, SystemExit, OSError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            result[name] = {"reason": lines[-1][:200]}
        finally:
            with contextlib.suppress(OSError):
                wipe(place)
    return result
