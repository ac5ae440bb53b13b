"""A packed store: twenty images of Debian's packages over one base, three of them releases of the same application.

    python3 -m bench.packed [--rounds N] [--quick]

Space: all files and directories of the store, whole and packed, in allocated blocks, beside the images' layers as a registry has them (gzip, each once), and beside what
else keeps images or cuts by content (packed_peers.py). One image alone: packed, beside its layers in gzip. Time: packing
and unpacking all of it, beside `zstd -3` and `zstd -d` of the layers' images, and of the peers. Snapshots of sandboxes
and volumes: the same disks packed, one after the other.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection

from bench import layers, layout, measure, mica, packed_peers, report
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

NAMES = [f"set-{number}" for number in range(len(SETS))]
NAMES += [f"release-{number}" for number in range(len(RELEASES))]
QUICK = ["set-0", "set-1", "set-2", "release-0", "release-1"]


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


def images(names: Collection[str] | None = None) -> dict[str, list[layout.Blob]]:
    """The layers of each image, bottom first; of all of them, unless they are named."""
    (PLACE / "debs").mkdir(parents=True, exist_ok=True)
    wanted = NAMES if names is None else names
    found = {}

    def add(name: str, below: list[layout.Blob], make) -> None:
        if name in wanted:
            found[name] = [*below, blob(name, make)]

    bottom = [blob("base", base)]
    for number, words in enumerate(SETS):
        add(f"set-{number}", bottom, lambda archive, words=words: packages(words, archive))
    for number, name in enumerate(RELEASES):
        python = [*bottom, blob("set-0", lambda archive: packages(SETS[0], archive))]
        add(f"release-{number}", python, lambda archive, name=name: release(name, archive))
    return found


def command(store: pathlib.Path, *words: str) -> Cost:
    environment = mica.environment(store)
    return measure.run([mica.binary(), *words], env=environment, stdout=subprocess.DEVNULL)


def space(found: dict[str, list[layout.Blob]], work: pathlib.Path) -> dict:
    """Packs all images in one store, and some of them alone."""
    unique = {blob.digest: blob.path.stat().st_size for all_ in found.values() for blob in all_}
    result = {"gzip": sum(unique.values()), "layers": len(unique), "images": len(found)}
    store = work / "store"
    for name, blobs in found.items():
        layout.write(work / "layout", blobs)
        mica.load(work / "layout", f"bench.local/{name}", store)
    result["whole"] = packed_peers.on_disk(store)
    command(store, "store", "pack", "--all")
    result["packed"] = packed_peers.on_disk(store)
    result["alone"] = {}
    for name in [name for name in ["set-0", "set-5", "set-6", "release-2"] if name in found]:
        alone = work / "alone"
        layout.write(work / "layout", found[name])
        mica.load(work / "layout", "bench.local/alone", alone)
        command(alone, "store", "pack", "--all")
        gzip = sum(blob.path.stat().st_size for blob in found[name])
        result["alone"][name] = packed_peers.on_disk(alone) / gzip
        shutil.rmtree(alone)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.packed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round of five images")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds = 1
    host = measure.machine()
    found = images(QUICK if arguments.quick else NAMES)
    work = pathlib.Path(tempfile.mkdtemp(dir=CACHE))
    try:
        result = {"rounds": arguments.rounds, "space": space(found, work)}
        result["peers"] = packed_peers.compare(found, work)
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
    measure.save("packed", host, result, is_partial=arguments.quick)
    report.write()


if __name__ == "__main__":
    main()
