"""What a wheel carries: `mica`, and the guest's kernel and initrd, compressed."""

from __future__ import annotations

import hashlib
import lzma
import os
import pathlib
import shutil
import tempfile

from micabox.errors import DamagedException, HostException

FILES = pathlib.Path(__file__).parent / "files"
MICA = FILES / "mica"
# For each of the guest's files, its SHA-256 and its name, as sha256sum(1) writes them.
SUMS = FILES / "guest.sha256"


def guest(cache: pathlib.Path | None = None) -> pathlib.Path:
    """The directory of the guest's files, which are unpacked into the user's cache once."""
    sums = SUMS.read_text()
    parent = (cache or _cache()) / "micabox"
    directory = parent / f"guest-{hashlib.sha256(sums.encode()).hexdigest()[:16]}"
    if directory.is_dir():
        return directory
    try:
        parent.mkdir(parents=True, exist_ok=True)
        work = pathlib.Path(tempfile.mkdtemp(prefix=".guest-", dir=parent))
        try:
            for line in sums.splitlines():
                digest, _, name = line.partition("  ")
                _unpack(name, digest, work / name)
            work.chmod(0o755)
            try:
                work.rename(directory)
            except OSError:
                if not directory.is_dir():  # another process was first
                    raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise HostException(
            f"cannot unpack the guest's files into {parent}: {error}",
            kind="host",
            hint="let $XDG_CACHE_HOME name a directory with 20 MB of room",
        ) from None
    return directory


def _unpack(name: str, digest: str, place: pathlib.Path) -> None:
    packed = FILES / f"{name}.xz"
    try:
        data = lzma.decompress(packed.read_bytes())
    except lzma.LZMAError as error:
        raise DamagedException(f"{packed} is damaged: {error}", kind="damaged") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise DamagedException(f"{packed} is not what the package was made with", kind="damaged")
    with place.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    place.chmod(0o644)


def _cache() -> pathlib.Path:
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):
        return pathlib.Path(named)
    try:
        return pathlib.Path.home() / ".cache"
    except RuntimeError as error:
        raise HostException(
            f"cannot unpack the guest's files: {error}",
            kind="host",
            hint="let $XDG_CACHE_HOME name a directory with 20 MB of room, or set $HOME",
        ) from None
