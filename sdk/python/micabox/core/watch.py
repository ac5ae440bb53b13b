"""Changes below a directory, as they happen."""

from __future__ import annotations

from typing import Any

from micabox.core.files import Files, Operation
from micabox.model.files import FilesystemEvent
from micabox.protocol.replies import ReplyDecoder


class Watch:
    """A directory that is watched."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._decoder = ReplyDecoder()

    @classmethod
    async def start(cls, files: Files, path: str, user: str | None, recursive: bool) -> Watch:
        """Begins to watch; changes are told from now on."""
        operation: dict[str, Any] = {"type": "watch", "path": files.absolute(path)}
        return cls(await files.begin("watch", user, **operation, recursive=recursive))

    async def events(self, timeout: float | None = None) -> list[FilesystemEvent] | None:
        """Waits for changes; None at the end, or after `timeout` seconds."""
        while (data := await self._operation.bytes(timeout)) is not None:
            told = (FilesystemEvent.of(reply) for reply in self._decoder.feed(data))
            if events := [event for event in told if event]:
                return events
        return None

    def close(self) -> None:
        """Ends it."""
        self._operation.close()
