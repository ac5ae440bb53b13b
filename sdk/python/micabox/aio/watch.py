"""Directories that are watched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from micabox.aio.background import spawn
from micabox.core.callback import tell
from micabox.core.watch import Watch
from micabox.errors import SandboxException
from micabox.model.files import FilesystemEvent

Event = Callable[[FilesystemEvent], Any]
Exit = Callable[[Exception | None], Any]


class AsyncWatchHandle:
    """A directory that is watched by a task."""

    def __init__(self, core: Watch, on_event: Event, on_exit: Exit | None) -> None:
        self._core = core
        self._task = spawn(self._attend(on_event, on_exit))

    async def _attend(self, on_event: Event, on_exit: Exit | None) -> None:
        failure = None
        try:
            while events := await self._core.events():
                for event in events:
                    await tell(on_event, event)
        except SandboxException as error:
            failure = error
        await tell(on_exit, failure)

    async def stop(self) -> None:
        """Ends the watch; `on_exit` is not called."""
        self._task.cancel()
        self._core.close()
