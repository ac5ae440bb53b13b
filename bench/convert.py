"""Conversion of a layer beside `gzip -dc | sha256sum` and mkfs.erofs.

    python3 -m bench.convert [--rounds N] [--quick]

`convert` is the library's conversion as a program: it reads the blob, checks both digests,
writes the EROFS image, flushes it to disk and publishes it in an empty store. `mica load`
does that for an OCI layout, and merges and publishes the image. `gzip -dc | sha256sum` is what merely checking
the layer takes with standard tools. `tar -xz` and Debian's mkfs.erofs is how one makes
the same image by hand; nothing is checked or flushed there.
"""

import argparse
import pathlib
import shlex
import shutil
import subprocess
import tempfile
from functools import partial

from bench import layers, layout, measure, mica, report
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


def in_scratch(contender, layer: Layer) -> Cost:
    """The second of two runs, each in a directory of its own, removed untimed.

    The first one has the machine get its memory together. A virtual machine's host takes
    free memory back, and the next to fill the page cache pays for faulting it in: here
    2 s of CPU for 600 MiB written, on top of 0.7 s. Which contender pays depends on the one before.
    """
    for _ in range(2):
        work = pathlib.Path(tempfile.mkdtemp(dir=CACHE))
        try:
            cost = contender(layer, work)
        finally:
            shutil.rmtree(work)
    return cost


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.convert")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round")
    arguments = parser.parse_args()
    mica.binary()
    build()
    host = measure.machine()
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
            1 if arguments.quick else arguments.rounds,
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
    measure.save("convert", host, result)
    report.write()


if __name__ == "__main__":
    main()
