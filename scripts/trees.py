"""Archives of layers, and trees as they are shown, for tests of what other programs make of images and mica of theirs."""

import contextlib
import hashlib
import io
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile

# What a layer's entry has, apart from its contents.
Entry = tuple[str, dict]


def entry(name: str, data: bytes = b"", **fields) -> Entry:
    return name, {"data": data, "mode": 0o644, "mtime": 1_700_000_000, **fields}


def directory(name: str, **fields) -> Entry:
    return entry(name, type=tarfile.DIRTYPE, **{"mode": 0o755, **fields})


def link(name: str, to: str, **fields) -> Entry:
    return entry(name, type=tarfile.LNKTYPE, linkname=to, **fields)


def archive(entries: list[Entry]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, fields in entries:
            info = tarfile.TarInfo(name)
            data = fields["data"]
            info.size = len(data)
            for field, value in fields.items():
                if field != "data":
                    setattr(info, field, value)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def docker_archive(path: pathlib.Path, name: str, layers: list[bytes]) -> None:
    """Writes an archive that `mica load` takes."""
    diff_ids = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    config = {"architecture": "amd64", "os": "linux", "config": {"Cmd": ["/bin/sh"]}}
    config["rootfs"] = {"type": "layers", "diff_ids": diff_ids}
    files = {f"{number}.tar": layer for number, layer in enumerate(layers)}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": list(files)}]
    files = {"config.json": json.dumps(config).encode(), **files}
    files["manifest.json"] = json.dumps(manifest).encode()
    path.write_bytes(archive([entry(file, data) for file, data in files.items()]))


def name() -> str:
    """The test's own, for its messages."""
    return pathlib.Path(sys.argv[0]).name


def run(*words: object, **options) -> str:
    command = [str(word) for word in words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{name()}: {' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


def listing(root: pathlib.Path, *, has_links: bool = True) -> str:
    """Names, kinds, modes, owners, contents and attributes. Times are those of files: unpacking changes others.

    With `has_links`, also which names are one file: over several layers, overlayfs and directories differ in it.
    """
    script = r"""set -o pipefail
        find . -type d -printf '%p %y %m %U %G\n' -o -printf '%p %y %m %U %G %s %T@ %l\n' | sort
        find . -type f -print0 | sort -z | xargs -0r sha256sum
        find . -print0 | sort -z | xargs -0 getfattr -h -d -m '^(user|security)' 2>/dev/null"""
    links = r"""
        find . ! -type d -links +1 -printf '%i %p %n\n' | sort -k 2 |
            awk '{ if (!($1 in of)) of[$1] = $2; print $2, "is", of[$1], "of", $3 }'"""
    return run("bash", "-ec", script + (links if has_links else ""), cwd=root)


def compare(what: str, is_: str, should: str) -> None:
    if is_ != should:
        pair = [pathlib.Path(tempfile.mkstemp()[1]) for _ in range(2)]
        for path, text in zip(pair, (should, is_), strict=True):
            path.write_text(text)
        diff = subprocess.run(["diff", *pair], check=False, capture_output=True, text=True).stdout
        sys.exit(f"{name()}: {what}: {diff}")


@contextlib.contextmanager
def mounted_by_mica(mica, name: str, work: pathlib.Path):
    root = pathlib.Path(tempfile.mkdtemp(dir=work))
    mica("mount", name, root)
    try:
        yield root
    finally:
        mica("umount", root)
