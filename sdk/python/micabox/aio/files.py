"""A sandbox's files."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Literal, overload

from micabox.aio.watch import AsyncWatchHandle, Event, Exit
from micabox.core.files import Files, Operation
from micabox.core.watch import Watch
from micabox.io.sockets import close_with
from micabox.model.files import AsyncWriteData, AsyncWriteEntry, EntryInfo, WriteInfo

if TYPE_CHECKING:
    from typing_extensions import Self


class AsyncFileStreamReader(AsyncIterator[bytes]):
    """A file that is read as it is consumed; also an asynchronous context manager."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        close_with(self, operation.close)

    async def __anext__(self) -> bytes:
        data = await self._operation.bytes()
        if data is None:
            raise StopAsyncIteration
        return data

    def close(self) -> None:
        """Ends the reading."""
        self._operation.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class AsyncFilesystem:
    """A sandbox's files.

    A path that is not absolute is one from the sandbox's working directory. `user` does the operation,
    the sandbox's own unless another one is given.
    """

    def __init__(self, core: Files) -> None:
        self._core = core

    @overload
    async def read(
        self, path: str, format: Literal["text"] = "text", user: str | None = None
    ) -> str: ...

    @overload
    async def read(self, path: str, format: Literal["bytes"], user: str | None = None) -> bytes: ...

    @overload
    async def read(
        self, path: str, format: Literal["stream"], user: str | None = None
    ) -> AsyncFileStreamReader: ...

    async def read(
        self,
        path: str,
        format: Literal["text", "bytes", "stream"] = "text",
        user: str | None = None,
    ) -> str | bytes | AsyncFileStreamReader:
        """Reads a file: as text in UTF-8 (U+FFFD for what is not), as bytes, or piece by piece."""
        if format == "stream":
            return AsyncFileStreamReader(await self._core.open(path, user))
        data = await self._core.read(path, user)
        return data if format == "bytes" else data.decode(errors="replace")

    async def write(self, path: str, data: AsyncWriteData, user: str | None = None) -> WriteInfo:
        """Writes a file, and makes the directories that are missing."""
        return await self._core.write(path, data, user)

    async def pack(self, path: str, user: str | None = None) -> AsyncFileStreamReader:
        """Reads what is in a directory as a tar archive, piece by piece; without sockets."""
        return AsyncFileStreamReader(await self._core.pack(path, user))

    async def unpack(self, path: str, data: AsyncWriteData, user: str | None = None) -> None:
        """Writes what is in a tar archive into a directory, which is made if it is missing."""
        await self._core.unpack(path, data, user)

    async def write_files(
        self, files: Sequence[AsyncWriteEntry], user: str | None = None
    ) -> builtins.list[WriteInfo]:
        """Writes files, one after the other."""
        return await self._core.write_files(files, user)

    async def list(
        self, path: str, depth: int = 1, user: str | None = None
    ) -> builtins.list[EntryInfo]:
        """What is in a directory, and in those below to this depth."""
        return await self._core.list(path, depth, user)

    async def exists(self, path: str, user: str | None = None) -> bool:
        """Whether there is a file; True for a symbolic link that leads nowhere."""
        return await self._core.exists(path, user)

    async def get_info(self, path: str, user: str | None = None) -> EntryInfo:
        """What is known of a file; of a symbolic link itself."""
        return await self._core.get_info(path, user)

    async def remove(self, path: str, user: str | None = None) -> None:
        """Removes a file, or a directory with all that is in it."""
        await self._core.remove(path, user)

    async def rename(self, old_path: str, new_path: str, user: str | None = None) -> EntryInfo:
        """Renames a file; one that has the new name is replaced."""
        return await self._core.rename(old_path, new_path, user)

    async def make_dir(self, path: str, user: str | None = None) -> bool:
        """Makes a directory, and those above it; False if it is there."""
        return await self._core.make_dir(path, user)

    async def watch_dir(
        self,
        path: str,
        on_event: Event,
        on_exit: Exit | None = None,
        user: str | None = None,
        recursive: bool = False,
    ) -> AsyncWatchHandle:
        """Watches a directory, from now on, and calls `on_event` for each change.

        `on_exit` is called when the directory or the sandbox is gone, with the reason if that is a failure.
        """
        watch = await Watch.start(self._core, path, user, recursive)
        return AsyncWatchHandle(watch, on_event, on_exit)
