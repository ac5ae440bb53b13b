"""Changes below a directory, as they happen."""

from __future__ import annotations

from typing import Any

from micabox.core.files import Files, Operation
from micabox.errors import SandboxException
from micabox.model.files import FilesystemEvent
from micabox.protocol.replies import ReplyDecoder


class Watch:
    """A directory that is watched."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._decoder = ReplyDecoder()
        self._is_stopped = False
        # A call that was interrupted has its answer later.
        self._asked = self._answered = 0

    @classmethod
    async def start(cls, files: Files, path: str, user: str | None, recursive: bool) -> Watch:
        """Begins to watch; changes are told from now on."""
        return cls(await files.watch(path, user, recursive))

    async def events(self) -> list[FilesystemEvent] | None:
        """Waits for changes; None at the end."""
        while (replies := await self._replies()) is not None:
            if events := _events(replies):
                return events
        return None

    async def so_far(self) -> list[FilesystemEvent]:
        """The changes since the last call: all that were made before this one are among them."""
        self._check()
        events: list[FilesystemEvent] = []
        self._asked += 1
        await self._operation.process.write(b"\0")
        while self._answered < self._asked and (replies := await self._replies()) is not None:
            events += _events(replies)
        return events

    async def _replies(self) -> list[dict[str, Any]] | None:
        self._check()
        data = await self._operation.bytes()
        if data is None:
            return None
        replies = self._decoder.feed(data)
        self._answered += sum(reply.get("type") == "told" for reply in replies)
        return replies

    def _check(self) -> None:
        if self._is_stopped:
            raise SandboxException("the watch was stopped")

    def close(self) -> None:
        """Ends it."""
        self._is_stopped = True
        self._operation.close()


def _events(replies: list[dict[str, Any]]) -> list[FilesystemEvent]:
    told = (FilesystemEvent.of(reply) for reply in replies)
    return [event for event in told if event]
