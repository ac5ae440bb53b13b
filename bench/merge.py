"""Merging an image of ten layers and 50,000 files into one metadata-only EROFS.

    python3 -m bench.merge [--rounds N]

Debian's mkfs.erofs 1.5 cannot merge. It can make a metadata-only image of a merged tree
(`--blobdev`): as root, the tree is merged with umoci, and the sizes are compared.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile

from bench import layout, measure, mica, report, tenlayers
from bench.measure import CACHE, REPOSITORY

TIMER = REPOSITORY / "bench" / "merge_timer"


def timer() -> pathlib.Path:
    """The program that merges against the clock, built."""
    target = REPOSITORY / "target" / "bench"
    command = ["cargo", "build", "--release", "--target-dir", target]
    subprocess.run(command, cwd=TIMER, check=True)
    return target / "release" / "merge-timer"


def layer_images(source: pathlib.Path) -> list[pathlib.Path]:
    """The EROFS images of a layout's layers in our store, the lowest first."""
    mica.load(source, "bench.local/ten-layers:latest")
    place = mica.STORE / "layers" / "sha256"
    return [place / blob.diff_id[:2] / f"{blob.diff_id}.erofs" for blob in layout.blobs(source)]


def mkfs_blobdev(source: pathlib.Path) -> dict | None:
    """Debian's mkfs.erofs on the merged tree, data in a separate file."""
    if os.geteuid() or not shutil.which("umoci"):
        return None
    with tempfile.TemporaryDirectory(dir=CACHE) as directory:
        work = pathlib.Path(directory)
        subprocess.run(
            ["umoci", "unpack", "--image", f"{source}:{layout.TAG}", work / "bundle"], check=True
        )
        # 1 MiB chunks: nearly every file is one index of eight bytes.
        options = ["--quiet", f"--blobdev={work / 'data'}", "--chunksize=1048576"]
        image = work / "meta.erofs"
        subprocess.run(["mkfs.erofs", *options, image, work / "bundle" / "rootfs"], check=True)
        return {"version": measure.package("erofs-utils"), "meta_bytes": image.stat().st_size}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.merge")
    parser.add_argument("--rounds", type=int, default=21)
    arguments = parser.parse_args()
    program = timer()
    mica.binary()
    host = measure.machine()
    source = tenlayers.image()
    images = layer_images(source)
    with tempfile.TemporaryDirectory(dir=CACHE) as directory:
        out = pathlib.Path(directory, "fsmeta.erofs")
        command = [program, str(arguments.rounds), out, *images]
        found = json.loads(subprocess.check_output(command))
        peak = measure.run([program, "1", out, *images]).rss
    beyond = (found["fsmeta_bytes"] - found["name_bytes"]) / found["inodes"]
    result = {
        "input": tenlayers.facts(),
        "median": statistics.median(found["merge"]),
        "min": min(found["merge"]),
        "max": max(found["merge"]),
        "cpu_median": statistics.median(found["cpu"]),
        "flush_median": statistics.median(found["flush"]),
        "bytes_an_inode_beyond_names": beyond,
        "rss": peak,
        **found,
        "mkfs_blobdev": mkfs_blobdev(source),
    }
    measure.save("merge", host, result)
    report.write()


if __name__ == "__main__":
    main()
