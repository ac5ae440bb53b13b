"""Changes below a directory, as they happen."""

from __future__ import annotations

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

    @classmethod
    async def start(cls, files: Files, path: str, user: str | None, recursive: bool) -> Watch:
        """Begins to watch; changes are told from now on."""
        return cls(await files.watch(path, user, recursive))

    async def events(self, timeout: float | None = None) -> list[FilesystemEvent] | None:
        """Waits for changes; None at the end, or after `timeout` seconds."""
        if self._is_stopped:
            raise SandboxException("the watch was stopped")
        while (data := await self._operation.bytes(timeout)) is not None:
            told = (FilesystemEvent.of(reply) for reply in self._decoder.feed(data))
            if events := [event for event in told if event]:
                return events
        return None

    def close(self) -> None:
        """Ends it."""
        self._is_stopped = True
        self._operation.close()
