"""Images, volumes and snapshots."""

from __future__ import annotations

import builtins
from typing import IO

from micabox.core import store
from micabox.core.files import pieces_of
from micabox.core.store import Line
from micabox.io.blocking import BlockingIo, complete
from micabox.model.progress import OnProgress
from micabox.model.sandbox import ImageInfo, SnapshotInfo, VolumeInfo


class Images:
    """Images of the store."""

    def __init__(self) -> None:
        self._core = store.Images(BlockingIo())

    def list(self) -> builtins.list[ImageInfo]:
        """All images."""
        return complete(self._core.list())

    def pull(
        self,
        image: str,
        platform: str | None = None,
        on_notice: Line | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        """Fetches an image from its registry. `on_notice` gets lines about it, such as retries;
        `on_progress` how far it is, at most some ten times a second."""
        complete(self._core.pull(image, platform, on_notice, on_progress))

    def push(
        self, image: str, destination: str | None = None, on_notice: Line | None = None
    ) -> None:
        """Sends an image to a registry: that of its name, or of another one."""
        complete(self._core.push(image, destination, on_notice))

    def tag(self, image: str, name: str) -> None:
        """Gives an image another name."""
        complete(self._core.tag(image, name))

    def remove(self, image: str) -> None:
        """Removes a name, and the image with its last one."""
        complete(self._core.remove(image))

    def load(self, archive: IO[bytes], name: str | None = None) -> None:
        """Loads images from an archive of Docker's or OCI's."""
        complete(self._core.load(pieces_of(archive), name))

    def save(self, image: str, archive: IO[bytes]) -> None:
        """Writes an image as an archive."""
        complete(self._core.save(image, archive.write))


class Volumes:
    """Disks with names, which outlive sandboxes."""

    def __init__(self) -> None:
        self._core = store.Volumes(BlockingIo())

    def list(self) -> builtins.list[VolumeInfo]:
        """All volumes."""
        return complete(self._core.list())

    def create(self, name: str, size: str | None = None) -> None:
        """Makes a volume of this size: `20g`."""
        complete(self._core.create(name, size))

    def resize(self, name: str, size: str) -> None:
        """Grows a volume that no running sandbox uses."""
        complete(self._core.resize(name, size))

    def remove(self, name: str) -> None:
        """Removes a volume that no sandbox uses."""
        complete(self._core.remove(name))


class Snapshots:
    """Copies of sandboxes, made with `Sandbox.create_snapshot`."""

    def __init__(self) -> None:
        self._core = store.Snapshots(BlockingIo())

    def list(self) -> builtins.list[SnapshotInfo]:
        """All snapshots."""
        return complete(self._core.list())

    def remove(self, name: str) -> None:
        """Removes a snapshot."""
        complete(self._core.remove(name))
