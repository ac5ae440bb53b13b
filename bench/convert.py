"""Conversion of a layer beside `gzip -dc | sha256sum` and mkfs.erofs; pull beside containerd.

    python3 -m bench.convert [--rounds N] [--quick] [--only-pull]

`convert` is the library's conversion as a program: it reads the blob, checks both digests,
writes the EROFS image, flushes it to disk and publishes it in an empty store. `mica load`
does that for an OCI layout, and merges and publishes the image. `gzip -dc | sha256sum` is what merely checking
the layer takes with standard tools. `tar -xz` and Debian's mkfs.erofs is how one makes
the same image by hand; nothing is checked or flushed there.

The pull is one of both layers, from a registry on loopback; only for root, as containerd mounts.
"""

import argparse
import datetime
import pathlib
import shlex
import shutil
import subprocess
import tempfile
from functools import partial

from bench import containerd, layers, layout, measure, mica, report
from bench.layers import Layer
from bench.measure import CACHE, Cost

EXAMPLE = measure.REPOSITORY / "target" / "release" / "examples" / "convert"


def build() -> None:
    """The conversion alone, as a program."""
    command = ["cargo", "build", "--release", "-p", "micabox-image", "--example", "convert"]
    subprocess.run(command, cwd=measure.REPOSITORY, check=True)


def convert(layer: Layer, work: pathlib.Path) -> Cost:
    """Converts the layer into a new store."""
    digests = [f"sha256:{digest}" for digest in (layer.diff_id, layer.blob_digest)]
    command = [EXAMPLE, work / "store", layer.blob, *digests]
    return measure.run(command, stderr=subprocess.DEVNULL)


def load(layer: Layer, work: pathlib.Path) -> Cost:
    """Imports an image of only this layer into a new store."""
    source = work / "layout"
    blob = layout.Blob(layer.blob, layer.blob_digest, layer.diff_id, f"{layout.LAYER}+gzip")
    layout.write(source, [blob])
    command = [mica.binary(), "load", source, "--name", "bench:latest"]
    return measure.run(command, env=mica.environment(work / "store"), stderr=subprocess.DEVNULL)


def both(layer_names: tuple[str, ...]) -> pathlib.Path:
    """An image of several layers, as an OCI layout in the cache."""
    place = CACHE / "-".join(layer_names)
    blobs = [
        layout.Blob(layer.blob, layer.blob_digest, layer.diff_id, f"{layout.LAYER}+gzip")
        for layer in map(layers.layer, layer_names)
    ]
    layout.write(place, blobs)
    return place


def pull(reference: str, work: pathlib.Path) -> Cost:
    """Pulls an image into a new store."""
    environment = mica.environment(work / "store")
    command = [mica.binary(), "pull", reference]
    return measure.run(command, env=environment, stderr=subprocess.DEVNULL)


def convert_all(_: str, work: pathlib.Path) -> Cost:
    """Converts both layers, one after the other, into new stores: what a pull can't do without."""
    costs = []
    for name in PULLED:
        (work / name).mkdir()
        costs.append(convert(layers.layer(name), work / name))
    return Cost(
        *(sum(getattr(cost, field) for cost in costs) for field in ("wall", "user", "system")),
        max(cost.rss for cost in costs),
    )


PULLED = ("debian", "modules")
PULLERS = {
    "mica pull": pull,
    "convert, both layers": convert_all,
    "containerd, EROFS": lambda reference, work: containerd.pull(reference, "erofs", work),
    "containerd, overlayfs": lambda reference, work: containerd.pull(reference, "overlayfs", work),
}


def pulls(rounds: int) -> dict:
    """Pulls an image of two layers from a registry on loopback."""
    programs = containerd.programs()
    image = both(PULLED)
    host = measure.machine()
    was_running = registry("status", check=False).returncode == 0
    registry("start")
    try:
        pushed = registry("push", image, "bench/convert:latest").stdout.strip()
        runs = measure.interleave(
            {who: partial(in_scratch, run, pushed) for who, run in PULLERS.items()}, rounds
        )
    finally:
        if not was_running:
            registry("stop")
    return {
        "date": datetime.date.today().isoformat(),
        "commit": measure.commit(),
        "machine": host,
        "containerd": containerd.VERSION,
        "mkfs.erofs": ".".join(map(str, containerd.mkfs_version(programs / "mkfs.erofs"))),
        "blob_bytes": sum(layers.layer(name).blob.stat().st_size for name in PULLED),
        "contenders": {who: measure.summary(costs) for who, costs in runs.items()},
    }


def registry(*words, check: bool = True) -> subprocess.CompletedProcess:
    command = [measure.REPOSITORY / "scripts" / "registry", *words]
    return subprocess.run(command, check=check, stdout=subprocess.PIPE, text=True)


def gzip_sha256sum(layer: Layer, work: pathlib.Path) -> Cost:
    del work
    return measure.run(["sh", "-c", f"gzip -dc {shlex.quote(str(layer.blob))} | sha256sum"])


def tar_mkfs(layer: Layer, work: pathlib.Path) -> Cost:
    tree, image = work / "tree", work / "image.erofs"
    tree.mkdir()
    words = [shlex.quote(str(path)) for path in (layer.blob, tree, image)]
    script = "tar -xzf {0} -C {1} && mkfs.erofs --quiet {2} {1}".format(*words)
    return measure.run(["sh", "-c", script])


CONTENDERS = {
    "convert": convert,
    "mica load": load,
    "gzip -dc | sha256sum": gzip_sha256sum,
    "tar -xz, mkfs.erofs": tar_mkfs,
}


def in_scratch(contender, subject: Layer | str) -> Cost:
    """The second of two runs, each in a directory of its own, removed untimed.

    The first one has the machine get its memory together. A virtual machine's host takes
    free memory back, and the next to fill the page cache pays for faulting it in: here
    2 s of CPU for 600 MiB written, on top of 0.7 s. Which contender pays depends on the one before.
    """
    for _ in range(2):
        work = pathlib.Path(tempfile.mkdtemp(dir=CACHE))
        try:
            cost = contender(subject, work)
        finally:
            shutil.rmtree(work)
    return cost


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.convert")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--only-pull", action="store_true", help="keep the other results")
    arguments = parser.parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    mica.binary()
    build()
    if arguments.only_pull:
        name = "convert-quick" if arguments.quick else "convert"
        measure.amend(name, {"pull": pulls(rounds)})
    else:
        host = measure.machine()
        result = convert_layers(rounds)
        measure.save("convert", host, result, is_partial=arguments.quick)
    report.write()


def convert_layers(rounds: int) -> dict:
    """What each contender took for each layer, and for pulls."""
    result = {
        "peers": {
            name: measure.package(name) for name in ("gzip", "coreutils", "tar", "erofs-utils")
        },
        "layers": {},
    }
    for name in ("debian", "modules"):
        layer = layers.layer(name)
        runs = measure.interleave(
            {who: partial(in_scratch, run, layer) for who, run in CONTENDERS.items()},
            rounds,
        )
        result["layers"][name] = {
            **layer.facts(),
            "contenders": {who: measure.summary(costs) for who, costs in runs.items()},
        }
    # Memory at a third size. Time would tell nothing new.
    layer = layers.layer("modules-4x")
    result["layers"]["modules-4x"] = {
        **layer.facts(),
        "contenders": {
            who: measure.summary([in_scratch(run, layer)])
            for who, run in (("convert", convert), ("mica load", load))
        },
    }
    result["rss_floor"] = measure.rss_floor()
    if measure.Group.usable():
        result["pull"] = pulls(rounds)
    return result


if __name__ == "__main__":
    main()
