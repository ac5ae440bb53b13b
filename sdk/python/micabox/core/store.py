"""Images, volumes and snapshots: what is kept when no sandbox runs."""

from __future__ import annotations

import builtins
import json
from collections.abc import AsyncIterable, Callable
from typing import Any, cast

from micabox.core import mica
from micabox.core.callback import tell
from micabox.io import Io
from micabox.model.progress import OnProgress, PullProgress
from micabox.model.sandbox import ImageInfo, SnapshotInfo, VolumeInfo

Line = Callable[[str], Any]


def _teller(on_notice: Line | None, on_progress: OnProgress) -> Line:
    """Takes the lines of `--progress=json`."""

    async def take(line: str) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            await tell(on_notice, line)  # for people, of a pull that fails
            return
        message = cast("dict[str, Any]", said)
        if progress := PullProgress.of(message):
            await tell(on_progress, progress)
        elif message.get("type") == "notice":
            await tell(on_notice, str(message.get("message")))

    return take


class Images:
    """Images."""

    def __init__(self, io: Io) -> None:
        self._io = io

    async def list(self) -> builtins.list[ImageInfo]:
        """All images of the store."""
        return [ImageInfo.of(image) for image in await mica.look(self._io, "images")]

    async def pull(
        self,
        image: str,
        platform: str | None,
        on_notice: Line | None,
        on_progress: OnProgress | None,
    ) -> None:
        """Fetches an image from its registry."""
        flags = ["--platform", platform] if platform else []
        on_line = on_notice
        if on_progress:
            flags.append("--progress=json")
            on_line = _teller(on_notice, on_progress)
        await mica.command(self._io, "pull", *flags, "--", image, on_stderr=on_line)

    async def push(self, image: str, destination: str | None, on_notice: Line | None) -> None:
        """Sends an image to a registry."""
        names = [image, destination] if destination else [image]
        await mica.command(self._io, "push", "--", *names, on_stderr=on_notice)

    async def tag(self, image: str, name: str) -> None:
        """Gives an image another name."""
        await mica.command(self._io, "tag", "--", image, name)

    async def remove(self, image: str) -> None:
        """Removes a name, and the image with its last one."""
        await mica.command(self._io, "rmi", "--", image)

    async def load(self, archive: AsyncIterable[bytes | memoryview], name: str | None) -> None:
        """Loads images from an archive of Docker's or OCI's."""
        flags = ["--name", name] if name else []
        await mica.command(self._io, "load", *flags, "-", stdin=archive)

    async def save(self, image: str, write: Callable[[bytes], Any]) -> None:
        """Writes an image as an archive."""
        await mica.command(self._io, "save", "--", image, on_stdout=write)


class Volumes:
    """Disks with names, which outlive sandboxes."""

    def __init__(self, io: Io) -> None:
        self._io = io

    async def list(self) -> builtins.list[VolumeInfo]:
        """All volumes."""
        return [VolumeInfo.of(volume) for volume in await mica.look(self._io, "volume", "ls")]

    async def create(self, name: str, size: str | None) -> None:
        """Makes a volume of this size: `20g`."""
        flags = ["--size", size] if size else []
        await mica.command(self._io, "volume", "create", *flags, "--", name)

    async def resize(self, name: str, size: str) -> None:
        """Grows a volume that no running sandbox uses."""
        await mica.command(self._io, "volume", "resize", "--", name, size)

    async def remove(self, name: str) -> None:
        """Removes a volume that no sandbox uses."""
        await mica.command(self._io, "volume", "rm", "--", name)


class Snapshots:
    """Copies of sandboxes."""

    def __init__(self, io: Io) -> None:
        self._io = io

    async def list(self) -> builtins.list[SnapshotInfo]:
        """All snapshots."""
        found = await mica.look(self._io, "snapshot", "ls")
        return [SnapshotInfo(str(record["name"]), dict[str, Any](record)) for record in found]

    async def remove(self, name: str) -> None:
        """Removes a snapshot."""
        await mica.command(self._io, "snapshot", "rm", "--", name)
