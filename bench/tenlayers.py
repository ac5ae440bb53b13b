"""An image of ten layers with 50,000 files, cut from the two real trees.

Layers 1 to 8 are consecutive pieces of a Debian root and of a node_modules directory,
so directories and hard links cross their borders. Layer 9 replaces 2,000 files of the
lower ones, layer 10 deletes 500 and empties ten directories.
"""

import io
import json
import pathlib
import sys
import tarfile
from collections.abc import Iterator

from bench import layers, layout
from bench.measure import CACHE

FILES, PIECES, REPLACED, DELETED, EMPTIED = 50_000, 8, 2_000, 500, 10
DIRECTORY = CACHE / "tenlayers"
MTIME = 1_700_000_000


def image() -> pathlib.Path:
    """The image as an OCI layout, made if the cache lacks it."""
    place = DIRECTORY / "layout"
    if not (place / "index.json").exists():
        print("making an image of ten layers (once)", file=sys.stderr)
        DIRECTORY.mkdir(parents=True, exist_ok=True)
        paths = [DIRECTORY / f"{number}.tar" for number in range(PIECES + 2)]
        make(paths)
        digests = [layers.sha256(path) for path in paths]
        layout.write(
            place,
            [
                layout.Blob(path, digest, digest, layout.LAYER)
                for path, digest in zip(paths, digests, strict=True)
            ],
        )
        for path in paths:
            path.unlink()
    return place


def facts() -> dict:
    return json.loads((DIRECTORY / "facts.json").read_text())


def members() -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Entries of both trees, up to `FILES` regular files."""
    left = FILES
    for name in ("debian", "modules"):
        with tarfile.open(layers.layer(name).blob, "r|gz") as archive:
            for member in archive:
                left -= member.isreg()
                if left < 0:
                    return
                yield archive, member


def make(paths: list[pathlib.Path]) -> None:
    """Writes the ten archives and what is in them."""
    files, directories, seen = [], [], 0
    out, piece = None, -1
    for archive, member in members():
        if seen * PIECES // FILES != piece or out is None:
            if out:
                out.close()
            piece = min(seen * PIECES // FILES, PIECES - 1)
            out = tarfile.open(paths[piece], "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        seen += member.isreg()
        out.addfile(member, archive.extractfile(member) if member.isreg() else None)
        name = member.name.removeprefix("./")
        if member.isreg():
            files.append(name)
        elif member.isdir():
            directories.append(name)
    out.close()

    with tarfile.open(paths[PIECES], "w", format=tarfile.PAX_FORMAT) as replace:
        for name in files[:: len(files) // REPLACED][:REPLACED]:
            add(replace, name, b"replaced\n")
    with tarfile.open(paths[PIECES + 1], "w", format=tarfile.PAX_FORMAT) as delete:
        for name in files[3 :: len(files) // DELETED][:DELETED]:
            directory, _, last = name.rpartition("/")
            add(delete, f"{directory}/.wh.{last}", b"")
        emptied = [name for name in directories if name.startswith("srv/app/node_modules/")]
        for name in emptied[:: len(emptied) // EMPTIED][:EMPTIED]:
            add(delete, f"{name}/.wh..wh..opq", b"")
            add(delete, f"{name}/new", b"new\n")
    found = {"layers": PIECES + 2, "files": seen, "directories": len(directories)}
    (DIRECTORY / "facts.json").write_text(json.dumps(found))


def add(archive: tarfile.TarFile, name: str, body: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mtime = len(body), MTIME
    archive.addfile(member, io.BytesIO(body))
