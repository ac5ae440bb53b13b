"""A packed store: twenty images of Debian's packages over one base, three of them releases of the same application.

    python3 -m bench.packed [--rounds N]

Space: the store whole and packed, beside the images' layers as a registry has them (gzip, each once), and beside borg
and restic, which cut by content as well, of the layers' archives. One image alone: packed, beside its layers in gzip.
Time: packing and unpacking all of it, beside `zstd -3` and `zstd -d` of the layers' images, and of borg and restic.
"""

import argparse
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from bench import layers, layout, measure, mica, report
from bench.measure import CACHE, Cost

PLACE = CACHE / "packed"
MTIME = "@1700000000"

# What is installed over the base, with what it depends on.
SETS = [
    "python3",
    "python3-numpy",
    "python3-flask",
    "python3-lxml python3-requests",
    "git",
    "g++",
    "nodejs",
    "ruby",
    "perl",
    "nginx",
    "redis-server",
    "postgresql-client",
    "openjdk-17-jre-headless",
    "curl ca-certificates",
    "php-cli",
    "sqlite3 vim",
    "imagemagick",
]
# Installed over python3 with pip.
RELEASES = ["scipy==1.13.0", "scipy==1.13.1", "scipy==1.14.1"]


def tar(tree: pathlib.Path, archive: pathlib.Path) -> None:
    plain = ["--sort=name", "--format=pax", f"--mtime={MTIME}"]
    owner = ["--owner=0", "--group=0", "--numeric-owner"]
    subprocess.run(["tar", *plain, *owner, "-cf", archive, "-C", tree, "."], check=True)


def base(archive: pathlib.Path) -> None:
    words = ["mmdebstrap", "--quiet", "--variant=minbase", layers.SUITE, archive]
    subprocess.run([*words, *layers.apt_sources()], check=True)


def packages(names: str, archive: pathlib.Path) -> None:
    """The files of packages, and of those that they need and the base lacks."""
    with tempfile.TemporaryDirectory(dir=PLACE) as work:
        status = pathlib.Path(work) / "status"
        status.write_bytes(
            subprocess.check_output(["tar", "-xOf", PLACE / "base.tar", "./var/lib/dpkg/status"])
        )
        plan = ["apt-get", "install", "-qq", "--print-uris", "--no-install-recommends"]
        plan += ["-o", f"Dir::State::status={status}", *names.split()]
        uris = subprocess.check_output(plan, text=True).splitlines()
        tree = pathlib.Path(work) / "tree"
        tree.mkdir()
        for line in uris:
            uri, name, _ = line.split(maxsplit=2)
            package = PLACE / "debs" / name
            if not package.exists():
                download = ["curl", "-fsSL", "-o", package, uri.strip("'")]
                subprocess.run(download, check=True)
            subprocess.run(["dpkg-deb", "-x", package, tree], check=True)
        tar(tree, archive)


def release(name: str, archive: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory(dir=PLACE) as work:
        target = f"{work}/usr/local/lib/python3.11/dist-packages"
        options = ["--no-deps", "--no-compile", "--only-binary=:all:", "--python-version=3.11"]
        quiet = ["-q", "--disable-pip-version-check", "--root-user-action=ignore"]
        words = [sys.executable, "-m", "pip", "install", *quiet, *options, f"--target={target}"]
        subprocess.run([*words, name], check=True)
        tar(pathlib.Path(work), archive)


def blob(name: str, make) -> layout.Blob:
    """A layer in gzip, made if the cache lacks it."""
    archive, packed = PLACE / f"{name}.tar", PLACE / f"{name}.tar.gz"
    if not packed.exists():
        print(f"making the layer {name} (once)", file=sys.stderr)
        make(archive)
        with (PLACE / "new").open("wb") as out:
            subprocess.run(["gzip", "-6nc", archive], stdout=out, check=True)
        (PLACE / "new").rename(packed)
    diff_id = layers.sha256(archive)
    return layout.Blob(packed, layers.sha256(packed), diff_id, f"{layout.LAYER}+gzip")


def images() -> dict[str, list[layout.Blob]]:
    (PLACE / "debs").mkdir(parents=True, exist_ok=True)
    bottom = blob("base", base)
    found = {}
    for number, names in enumerate(SETS):
        top = blob(f"set-{number}", lambda archive, names=names: packages(names, archive))
        found[f"set-{number}"] = [bottom, top]
    for number, name in enumerate(RELEASES):
        top = blob(f"release-{number}", lambda archive, name=name: release(name, archive))
        found[f"release-{number}"] = [*found["set-0"], top]
    return found


def on_disk(path: pathlib.Path) -> int:
    files = (file.lstat() for file in path.rglob("*"))
    return sum(stat.st_blocks * 512 for stat in files)


def command(store: pathlib.Path, *words: str) -> Cost:
    environment = mica.environment(store)
    return measure.run([mica.binary(), *words], env=environment, stdout=subprocess.DEVNULL)


def layers_size(store: pathlib.Path) -> int:
    """What layers take: images, or packs and lists, and the recipes that give archives back."""
    return on_disk(store / "layers") + on_disk(store / "packs")


def space(found: dict[str, list[layout.Blob]], work: pathlib.Path) -> dict:
    """Packs all images in one store, and some of them alone."""
    unique = {blob.digest: blob.path.stat().st_size for all_ in found.values() for blob in all_}
    result = {"gzip": sum(unique.values()), "layers": len(unique)}
    store = work / "store"
    for name, blobs in found.items():
        layout.write(work / "layout", blobs)
        mica.load(work / "layout", f"bench.local/{name}", store)
    result["whole"] = layers_size(store)
    command(store, "store", "pack", "--all")
    result["packed"] = layers_size(store)
    result["alone"] = {}
    for name in ["set-0", "set-5", "set-6", "release-2"]:
        alone = work / "alone"
        layout.write(work / "layout", found[name])
        mica.load(work / "layout", "bench.local/alone", alone)
        command(alone, "store", "pack", "--all")
        gzip = sum(blob.path.stat().st_size for blob in found[name])
        result["alone"][name] = layers_size(alone) / gzip
        shutil.rmtree(alone)
    return result


def peers(found: dict[str, list[layout.Blob]], work: pathlib.Path) -> dict[str, dict]:
    """What programs that cut by content as well make of the layers' archives, each archive once."""
    archives = {blob.path.with_suffix("") for blobs in found.values() for blob in blobs}
    archives = [str(path) for path in sorted(archives)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    secret = {**os.environ, "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes"}
    secret |= {"RESTIC_PASSWORD": hashlib.sha256(b"bench").hexdigest(), "HOME": str(work)}
    result = {}
    for name, begin, add in [
        (
            "borg",
            ["borg", "init", "-e", "none", f"{work}/borg"],
            ["borg", "create", "-C", "zstd,3", f"{work}/borg::all", *archives],
        ),
        (
            "restic",
            ["restic", "-r", f"{work}/restic", "init"],
            ["restic", "-r", f"{work}/restic", "backup", "--compression", "auto", *archives],
        ),
    ]:
        if not shutil.which(name):
            continue
        subprocess.run(begin, check=True, env=secret, **quiet)
        cost = measure.run(add, env=secret, **quiet)
        result[name] = {"size": on_disk(work / name), "cpu": cost.cpu, "wall": cost.wall}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.packed")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    host = measure.machine()
    found = images()
    work = pathlib.Path(tempfile.mkdtemp(dir=CACHE))
    try:
        result = {"rounds": arguments.rounds, "space": space(found, work)}
        result["peers"] = peers(found, work)
        store = work / "store"
        names = [f"bench.local/{name}" for name in found]
        command(store, "store", "unpack", *names)
        files = sorted((store / "layers").rglob("*.erofs"))
        frames = work / "frames"
        frames.mkdir()
        script = 'd=$1; shift; for file; do zstd -3 -q -f -o "$d/${file##*/}" "$file"; done'
        compress = ["sh", "-c", script, "sh", frames, *files]
        script = 'for file; do zstd -d -q -f --no-sparse -o "$file.out" "$file"; done'
        subprocess.run(compress, check=True)
        inflate = ["sh", "-c", script, "sh", *sorted(frames.iterdir())]

        def pack() -> Cost:
            """Packs from the start: nothing of the store is packed before."""
            for path in [*(store / "layers").rglob("*.chunks"), *(store / "packs").rglob("*.pack")]:
                path.unlink()
            cost = command(store, "store", "pack", "--all")
            command(store, "store", "unpack", *names)
            return cost

        def unpack() -> Cost:
            command(store, "store", "pack", "--all")
            return command(store, "store", "unpack", *names)

        ways = {
            "pack": pack,
            "compress": lambda: measure.run(compress),
            "unpack": unpack,
            "inflate": lambda: measure.run(inflate),
        }
        costs = measure.interleave(ways, arguments.rounds)
        result["costs"] = {who: measure.summary(runs) for who, runs in costs.items()}
        result["bytes"] = sum(file.stat().st_blocks * 512 for file in files)
    finally:
        shutil.rmtree(work)
    measure.save("packed", host, result)
    report.write()


if __name__ == "__main__":
    main()
