"""Images, volumes and snapshots."""

from __future__ import annotations

import builtins
from typing import IO

from micabox.core import store
from micabox.core.files import pieces_of
from micabox.core.store import Line
from micabox.io.tasks import TaskIo
from micabox.model.progress import OnProgress
from micabox.model.sandbox import ImageInfo, SnapshotInfo, VolumeInfo


class AsyncImages:
    """Images of the store."""

    def __init__(self) -> None:
        self._core = store.Images(TaskIo())

    async def list(self) -> builtins.list[ImageInfo]:
        """All images."""
        return await self._core.list()

    async def pull(
        self,
        image: str,
        platform: str | None = None,
        on_notice: Line | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        """Fetches an image from its registry. `on_notice` gets lines about it, such as retries;
        `on_progress` how far it is, at most some ten times a second. Both may be coroutine functions."""
        await self._core.pull(image, platform, on_notice, on_progress)

    async def push(
        self, image: str, destination: str | None = None, on_notice: Line | None = None
    ) -> None:
        """Sends an image to a registry: that of its name, or of another one."""
        await self._core.push(image, destination, on_notice)

    async def tag(self, image: str, name: str) -> None:
        """Gives an image another name."""
        await self._core.tag(image, name)

    async def remove(self, image: str) -> None:
        """Removes a name, and the image with its last one."""
        await self._core.remove(image)

    async def load(self, archive: IO[bytes], name: str | None = None) -> None:
        """Loads images from an archive of Docker's or OCI's."""
        await self._core.load(pieces_of(archive), name)

    async def save(self, image: str, archive: IO[bytes]) -> None:
        """Writes an image as an archive."""
        await self._core.save(image, archive.write)


class AsyncVolumes:
    """Disks with names, which outlive sandboxes."""

    def __init__(self) -> None:
        self._core = store.Volumes(TaskIo())

    async def list(self) -> builtins.list[VolumeInfo]:
        """All volumes."""
        return await self._core.list()

    async def create(self, name: str, size: str | None = None) -> None:
        """Makes a volume of this size: `20g`."""
        await self._core.create(name, size)

    async def resize(self, name: str, size: str) -> None:
        """Grows a volume that no running sandbox uses."""
        await self._core.resize(name, size)

    async def remove(self, name: str) -> None:
        """Removes a volume that no sandbox uses."""
        await self._core.remove(name)


class AsyncSnapshots:
    """Copies of sandboxes, made with `AsyncSandbox.create_snapshot`."""

    def __init__(self) -> None:
        self._core = store.Snapshots(TaskIo())

    async def list(self) -> builtins.list[SnapshotInfo]:
        """All snapshots."""
        return await self._core.list()

    async def remove(self, name: str) -> None:
        """Removes a snapshot."""
        await self._core.remove(name)
