"""Files in a sandbox."""

from __future__ import annotations

import posixpath
import stat as modes
from collections.abc import AsyncIterable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import IO, Any, TypedDict

from micabox.protocol.replies import text

WriteData = str | bytes | IO[bytes] | IO[str] | Iterable[bytes]
AsyncWriteData = str | bytes | IO[bytes] | IO[str] | Iterable[bytes] | AsyncIterable[bytes]


class WriteEntry(TypedDict):
    """A file to write."""

    path: str
    data: WriteData


class AsyncWriteEntry(TypedDict):
    """A file to write."""

    path: str
    data: AsyncWriteData


class FileType(Enum):
    """What a file is."""

    FILE = "file"
    DIR = "dir"
    SYMLINK = "symlink"
    CHAR_DEVICE = "char_device"
    BLOCK_DEVICE = "block_device"
    FIFO = "fifo"
    SOCKET = "socket"


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# Seconds since then of the first day and the last of `datetime`.
_FIRST = int((datetime(1, 1, 1, tzinfo=timezone.utc) - _EPOCH).total_seconds())
_LAST = int((datetime(9999, 12, 31, tzinfo=timezone.utc) - _EPOCH).total_seconds())

_FORMATS = {
    FileType.FILE: modes.S_IFREG,
    FileType.DIR: modes.S_IFDIR,
    FileType.SYMLINK: modes.S_IFLNK,
    FileType.CHAR_DEVICE: modes.S_IFCHR,
    FileType.BLOCK_DEVICE: modes.S_IFBLK,
    FileType.FIFO: modes.S_IFIFO,
    FileType.SOCKET: modes.S_IFSOCK,
}


@dataclass(frozen=True)
class WriteInfo:
    """A file that was written."""

    name: str
    type: FileType
    path: str


@dataclass(frozen=True)
class EntryInfo(WriteInfo):
    """A file."""

    size: int
    """Bytes."""
    mode: int
    """Permissions, and set-id and sticky bits: 0o644."""
    permissions: str
    """As `ls -l` shows them: `-rw-r--r--`."""
    uid: int
    gid: int
    modified_time: datetime
    symlink_target: str | None = None

    @classmethod
    def of(cls, path: str, stat: dict[str, Any], target: Any = None) -> EntryInfo:
        """What a reply `stat` says of the file at an absolute path."""
        kind = str(stat.get("kind"))
        type = FileType.DIR if kind == "directory" else FileType(kind)
        mode = int(stat["mode"]) & 0o7777
        modified = dict[str, Any](stat["modified"])
        # A file's time may be before the first year of `datetime`, or after its last.
        seconds = min(max(int(modified["seconds"]), _FIRST), _LAST)
        since = timedelta(seconds=seconds, microseconds=int(modified["nanos"]) // 1000)
        return cls(
            name=posixpath.basename(path.rstrip("/")),
            type=type,
            path=path,
            size=int(stat["size"]),
            mode=mode,
            permissions=modes.filemode(_FORMATS[type] | mode),
            uid=int(stat["uid"]),
            gid=int(stat["gid"]),
            modified_time=_EPOCH + since,
            symlink_target=text(target) if type is FileType.SYMLINK else None,
        )


class FilesystemEventType(Enum):
    """What happened to a file."""

    CHMOD = "chmod"
    CREATE = "create"
    REMOVE = "remove"
    RENAME = "rename"
    WRITE = "write"
    OVERFLOW = "overflow"
    """Changes were lost: look at the directory again."""


_CHANGES = {
    "attributes": FilesystemEventType.CHMOD,
    "created": FilesystemEventType.CREATE,
    "moved_to": FilesystemEventType.CREATE,
    "removed": FilesystemEventType.REMOVE,
    "moved_from": FilesystemEventType.RENAME,
    "modified": FilesystemEventType.WRITE,
    "overflow": FilesystemEventType.OVERFLOW,
}


@dataclass(frozen=True)
class FilesystemEvent:
    """A change below a directory that is watched. A file that is moved within it is a RENAME of the old
    name and a CREATE of the new one."""

    name: str
    """Path from the directory."""
    type: FilesystemEventType

    @classmethod
    def of(cls, reply: dict[str, Any]) -> FilesystemEvent | None:
        """What a reply `event` says; None for the end of a write, which was told already."""
        change = _CHANGES.get(str(reply.get("change")))
        return cls(text(reply.get("path")), change) if change else None
