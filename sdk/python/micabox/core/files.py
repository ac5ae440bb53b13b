"""Operations on a sandbox's files."""

from __future__ import annotations

import builtins
import errno
import json
import posixpath
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, cast

from micabox import arguments
from micabox.core.exec import Defaults, exit_code
from micabox.core.owner import Owner
from micabox.core.process import Process
from micabox.errors import (
    CommandStartException,
    FileException,
    FileExistsException,
    FileNotFoundException,
    ProtocolException,
    of_file,
)
from micabox.io import sockets
from micabox.model.files import (
    AsyncWriteData,
    AsyncWriteEntry,
    EntryInfo,
    FileType,
    WriteEntry,
    WriteInfo,
)
from micabox.protocol.frames import STDOUT
from micabox.protocol.replies import ReplyDecoder, encode_reply, encode_text, text

_FILES = "\0files"
# Milliseconds that the guest may be silent. It has nothing to say while it removes a large tree.
ANSWER_TIMEOUT = 300_000
_PIECE = 1 << 20
# What is no series of pieces, though it can be iterated over.
_WHOLE = (str, bytes, bytearray, memoryview, Mapping)
# Entries of a directory; a guest may lie.
_MAX_ENTRIES = 10_000_000


class Operation:
    """An operation under way."""

    def __init__(self, process: Process, what: str, path: str) -> None:
        self.process = process
        self._what = what
        self._path = path
        self._failures = ReplyDecoder()
        self._failed: list[dict[str, Any]] = []

    async def bytes(self, timeout: float | None = None) -> bytes | None:
        """The next bytes of stdout; None at the end, or after `timeout` seconds."""
        while output := await self.process.output(timeout):
            if output.stream == STDOUT:
                return output.data
            if len(self._failed) < _MAX_ENTRIES:
                self._failed += self._failures.feed(output.data)
        if self.process.is_over:
            self._check()
        return None

    def _check(self) -> None:
        if exit_code(self.process.exited or {}) == 0:
            return
        for reply in self._failed:
            if reply.get("type") == "failed":
                other = reply.get("path")
                path = text(other) if other else self._path
                number = int(reply.get("errno") or 0)
                raise of_file(self._what, path, number, str(reply.get("message") or ""))
        raise FileException(f"cannot {self._what} `{self._path}`: the operation was ended")

    async def replies(self) -> AsyncIterator[dict[str, Any]]:
        """The replies on stdout."""
        decoder = ReplyDecoder()
        while (data := await self.bytes()) is not None:
            for reply in decoder.feed(data):
                yield reply

    async def all(self) -> bytes:
        """All bytes of stdout."""
        pieces: list[bytes] = []
        while (data := await self.bytes()) is not None:
            pieces.append(data)
        return b"".join(pieces)

    async def finish(self) -> None:
        """Waits for the end of an operation without a result."""
        while await self.bytes() is not None:
            pass

    def close(self) -> None:
        """Ends it, whether it is over or not."""
        self.process.close()


class Files:
    """A sandbox's files. A path that is not absolute is one from the sandbox's working directory."""

    def __init__(self, owner: Owner, defaults: Defaults) -> None:
        self._owner = owner
        self._defaults = defaults

    def absolute(self, path: str) -> str:
        """The path from the root."""
        if path == "":
            raise arguments.invalid("the path is empty")
        return self._defaults.path(path)

    async def begin(
        self,
        what: str,
        user: str | None,
        stdin: bool = False,
        is_held: bool = False,
        **operation: Any,
    ) -> Operation:
        """Begins an operation of docs/protocol.md. What the caller holds, and may leave alone, has a connection
        of its own, which ends with it."""
        path = str(operation.get("path") or operation.get("from") or "")
        paths = ("path", "from", "to")
        said = {key: encode_text(v) if key in paths else v for key, v in operation.items()}
        request = {
            "type": "exec",
            "argv": [_FILES, json.dumps(said)],
            "user": self._defaults.user(user),
            "answer_timeout": 0 if operation["type"] == "watch" else ANSWER_TIMEOUT,
            "stdin": "frames" if stdin else "null",
            "stdout": "frames",
            "stderr": "frames",
        }
        try:
            process = await self._start(request, is_held)
        except CommandStartException as failure:
            if failure.reason != "file":
                raise
            raise of_file(what, path, failure.errno, failure.message) from None
        return Operation(process, what, path)

    async def _start(self, request: dict[str, Any], is_held: bool) -> Process:
        if not is_held:
            try:
                return await Process.start(self._owner.io, await self._owner.share(), request)
            except sockets.NotSent:
                pass  # the connection ended just now
        return await Process.start(self._owner.io, await self._owner.connect(), request)

    async def _perform(self, what: str, user: str | None, **operation: Any) -> None:
        begun = await self.begin(what, user, **operation)
        try:
            await begun.finish()
        finally:
            begun.close()

    async def _reply(self, what: str, user: str | None, **operation: Any) -> dict[str, Any]:
        begun = await self.begin(what, user, **operation)
        try:
            replies = [reply async for reply in begun.replies()]
        finally:
            begun.close()
        if len(replies) != 1:
            raise ProtocolException(f"{len(replies)} replies to an operation that has one")
        return replies[0]

    async def open(self, path: str, user: str | None, is_held: bool = True) -> Operation:
        """Begins to read a file."""
        operation: dict[str, Any] = {"type": "read", "path": self.absolute(path)}
        return await self.begin("read", user, False, is_held, **operation, offset=0, length=None)

    async def read(self, path: str, user: str | None) -> bytes:
        """Reads a file."""
        begun = await self.open(path, user, is_held=False)
        try:
            return await begun.all()
        finally:
            begun.close()

    async def write(self, path: str, data: AsyncWriteData, user: str | None) -> WriteInfo:
        """Writes a file, and makes the directories that are missing."""
        path = self.absolute(path)
        operation: dict[str, Any] = {"existing": "truncate", "mode": 0o644, "parents": True}
        await self._fill("write", user, data, type="write", path=path, **operation)
        return WriteInfo(posixpath.basename(path), FileType.FILE, path)

    async def pack(self, path: str, user: str | None) -> Operation:
        """Begins to read what is in a directory as a tar archive."""
        path = self.absolute(path)
        operation: dict[str, Any] = {"type": "pack", "path": path, "follow": True, "name": ""}
        return await self.begin("pack", user, False, True, **operation)

    async def unpack(self, path: str, data: AsyncWriteData, user: str | None) -> None:
        """Writes what is in a tar archive into a directory, which is made if it is missing."""
        await self._fill("unpack into", user, data, type="unpack", path=self.absolute(path))

    async def _fill(
        self, what: str, user: str | None, data: AsyncWriteData, **operation: Any
    ) -> None:
        # What can't be written leaves the file as it is.
        pieces = aiter(pieces_of(data))
        try:
            first = await anext(pieces)
        except StopAsyncIteration:
            first = memoryview(b"")
        begun = await self.begin(what, user, True, **operation)
        try:
            if await begun.process.write(first):
                async for piece in pieces:
                    if not await begun.process.write(piece):
                        break
            await begun.process.close_stdin()
            await begun.finish()
        finally:
            begun.close()

    async def write_files(
        self, files: Sequence[WriteEntry] | Sequence[AsyncWriteEntry], user: str | None
    ) -> builtins.list[WriteInfo]:
        """Writes files, one after the other, in one operation."""
        if len(files) < 2:
            return [await self.write(file["path"], file["data"], user) for file in files]
        written: builtins.list[WriteInfo] = []
        operation: dict[str, Any] = {"existing": "truncate", "mode": 0o644, "parents": True}
        begun = await self.begin("write", user, True, type="write_many", **operation)
        batch = bytearray()

        async def finish() -> None:
            await begun.process.write(bytes(batch))
            await begun.process.close_stdin()
            await begun.finish()

        pieces = self._pieces(files)
        try:
            while True:
                try:
                    path, data, continues = await anext(pieces)
                except StopAsyncIteration:
                    break
                except Exception:
                    await finish()  # what comes before it is written all the same
                    raise
                piece = {"path": encode_text(path), "size": len(data), "continues": continues}
                batch += encode_reply(piece) + data
                if not continues:
                    written.append(WriteInfo(posixpath.basename(path), FileType.FILE, path))
                if len(batch) >= _PIECE:
                    if not await begun.process.write(bytes(batch)):
                        break
                    batch.clear()
            await finish()
        finally:
            begun.close()
        return written

    async def _pieces(
        self, files: Sequence[WriteEntry] | Sequence[AsyncWriteEntry]
    ) -> AsyncIterator[tuple[str, memoryview, bool]]:
        for file in files:
            path, continues = self.absolute(file["path"]), False
            async for data in pieces_of(file["data"]):
                yield path, data, continues
                continues = True
            if not continues:
                yield path, memoryview(b""), False

    async def list(self, path: str, depth: int, user: str | None) -> builtins.list[EntryInfo]:
        """What is in a directory, and in those below to this depth."""
        path = self.absolute(path)
        depth = arguments.whole(depth, "depth", 1, 0xFFFF_FFFF)
        entries: list[EntryInfo] = []
        begun = await self.begin("list", user, type="list", path=path, depth=depth)
        try:
            async for reply in begun.replies():
                below = posixpath.join(path, text(reply.get("path")))
                stat = dict[str, Any](reply["stat"])
                entries.append(EntryInfo.of(below, stat, reply.get("target")))
                if len(entries) > _MAX_ENTRIES:
                    raise ProtocolException("the guest's list has no end")
        finally:
            begun.close()
        return entries

    async def get_info(self, path: str, user: str | None) -> EntryInfo:
        """What is known of a file; of a symbolic link itself."""
        path = self.absolute(path)
        reply = await self._reply("stat", user, type="stat", path=path, follow=False)
        target = None
        if reply.get("kind") == "symlink":
            said = await self._reply("read the link", user, type="read_link", path=path)
            target = said.get("target")
        return EntryInfo.of(path, reply, target)

    async def exists(self, path: str, user: str | None) -> bool:
        """Whether there is a file; True for a symbolic link that leads nowhere."""
        path = self.absolute(path)
        try:
            await self._reply("stat", user, type="stat", path=path, follow=False)
        except FileNotFoundException:
            return False
        except FileException as failure:
            if failure.errno == errno.ENOTDIR:
                return False
            raise
        return True

    async def remove(self, path: str, user: str | None) -> None:
        """Removes a file, or a directory with all that is in it."""
        path = self.absolute(path)
        await self._perform("remove", user, type="remove", path=path, recursive=True)

    async def rename(self, old: str, new: str, user: str | None) -> EntryInfo:
        """Renames a file; one that has the new name is replaced."""
        old, new = self.absolute(old), self.absolute(new)
        operation = {"type": "rename", "from": old, "to": new, "replace": True}
        try:
            await self._perform("rename", user, **operation)
        except FileNotFoundException:
            if not await self.exists(old, user):
                raise
            await self.make_dir(posixpath.dirname(new), user)
            await self._perform("rename", user, **operation)
        return await self.get_info(new, user)

    async def watch(self, path: str, user: str | None, recursive: bool) -> Operation:
        """Begins to watch a directory."""
        path = self.absolute(path)
        reply = await self._reply("watch", user, type="stat", path=path, follow=True)
        if reply.get("kind") != "directory":
            raise of_file("watch", path, errno.ENOTDIR, "")
        operation = {"type": "watch", "path": path, "recursive": bool(recursive)}
        return await self.begin("watch", user, True, True, **operation)

    async def make_dir(self, path: str, user: str | None) -> bool:
        """Makes a directory, and those above it; False if it is there."""
        path = self.absolute(path)
        operation: dict[str, Any] = {"type": "make_directory", "path": path, "mode": 0o755}
        try:
            await self._perform("make the directory", user, **operation, parents=False)
        except FileNotFoundException:
            await self._perform("make the directory", user, **operation, parents=True)
        except FileExistsException:
            reply = await self._reply("stat", user, type="stat", path=path, follow=True)
            if reply.get("kind") != "directory":
                raise
            return False
        return True


async def pieces_of(
    data: AsyncWriteData | AsyncIterable[str | bytes] | Iterable[str | bytes],
) -> AsyncIterator[memoryview]:
    """Bytes to write, a piece at a time."""
    given: Any = data
    if isinstance(given, AsyncIterable):
        async for piece in cast("AsyncIterable[Any]", given):
            yield arguments.binary(piece, "a piece of data")
    elif (read := getattr(given, "read", None)) is not None:
        while piece := read(_PIECE):
            yield arguments.binary(piece, "a piece of data")
    elif isinstance(given, _WHOLE) or not isinstance(given, Iterable):
        yield arguments.binary(given, "data")
    else:
        for piece in cast("Iterable[Any]", given):
            yield arguments.binary(piece, "a piece of data")
