"""A sandbox's files."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, overload

from micabox.core.files import Files, Operation
from micabox.core.watch import Watch
from micabox.io.blocking import complete
from micabox.io.sockets import close_with
from micabox.model.files import EntryInfo, WriteData, WriteEntry, WriteInfo
from micabox.sync.watch import WatchHandle

if TYPE_CHECKING:
    from typing_extensions import Self


class FileStreamReader(Iterator[bytes]):
    """A file that is read as it is consumed; also a context manager."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        close_with(self, operation.close)

    def __next__(self) -> bytes:
        data = complete(self._operation.bytes())
        if data is None:
            raise StopIteration
        return data

    def close(self) -> None:
        """Ends the reading."""
        self._operation.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Filesystem:
    """A sandbox's files.

    A path that is not absolute is one from the sandbox's working directory. `user` does the operation,
    the sandbox's own unless another one is given.
    """

    def __init__(self, core: Files) -> None:
        self._core = core

    @overload
    def read(self, path: str, format: Literal["text"] = "text", user: str | None = None) -> str: ...

    @overload
    def read(self, path: str, format: Literal["bytes"], user: str | None = None) -> bytes: ...

    @overload
    def read(
        self, path: str, format: Literal["stream"], user: str | None = None
    ) -> FileStreamReader: ...

    def read(
        self,
        path: str,
        format: Literal["text", "bytes", "stream"] = "text",
        user: str | None = None,
    ) -> str | bytes | FileStreamReader:
        """Reads a file: as text in UTF-8 (U+FFFD for what is not), as bytes, or piece by piece."""
        if format == "stream":
            return FileStreamReader(complete(self._core.open(path, user)))
        data = complete(self._core.read(path, user))
        return data if format == "bytes" else data.decode(errors="replace")

    def write(self, path: str, data: WriteData, user: str | None = None) -> WriteInfo:
        """Writes a file, and makes the directories that are missing."""
        return complete(self._core.write(path, data, user))

    def pack(self, path: str, user: str | None = None) -> FileStreamReader:
        """Reads what is in a directory as a tar archive, piece by piece; without sockets."""
        return FileStreamReader(complete(self._core.pack(path, user)))

    def unpack(self, path: str, data: WriteData, user: str | None = None) -> None:
        """Writes what is in a tar archive into a directory, which is made if it is missing."""
        complete(self._core.unpack(path, data, user))

    def write_files(
        self, files: Sequence[WriteEntry], user: str | None = None
    ) -> builtins.list[WriteInfo]:
        """Writes files, one after the other."""
        return complete(self._core.write_files(files, user))

    def list(self, path: str, depth: int = 1, user: str | None = None) -> builtins.list[EntryInfo]:
        """What is in a directory, and in those below to this depth."""
        return complete(self._core.list(path, depth, user))

    def exists(self, path: str, user: str | None = None) -> bool:
        """Whether there is a file; True for a symbolic link that leads nowhere."""
        return complete(self._core.exists(path, user))

    def get_info(self, path: str, user: str | None = None) -> EntryInfo:
        """What is known of a file; of a symbolic link itself."""
        return complete(self._core.get_info(path, user))

    def remove(self, path: str, user: str | None = None) -> None:
        """Removes a file, or a directory with all that is in it."""
        complete(self._core.remove(path, user))

    def rename(self, old_path: str, new_path: str, user: str | None = None) -> EntryInfo:
        """Renames a file; one that has the new name is replaced."""
        return complete(self._core.rename(old_path, new_path, user))

    def make_dir(self, path: str, user: str | None = None) -> bool:
        """Makes a directory, and those above it; False if it is there."""
        return complete(self._core.make_dir(path, user))

    def watch_dir(self, path: str, user: str | None = None, recursive: bool = False) -> WatchHandle:
        """Watches a directory, from now on."""
        return WatchHandle(complete(Watch.start(self._core, path, user, recursive)))
