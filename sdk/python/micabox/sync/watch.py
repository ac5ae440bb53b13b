"""Directories that are watched."""

from __future__ import annotations

from micabox.core.watch import Watch
from micabox.io.blocking import complete
from micabox.io.sockets import close_with
from micabox.model.files import FilesystemEvent


class WatchHandle:
    """A directory that is watched."""

    def __init__(self, core: Watch) -> None:
        self._core = core
        close_with(self, core.close)

    def get_new_events(self) -> list[FilesystemEvent]:
        """What has happened since the last call; does not wait."""
        events: list[FilesystemEvent] = []
        while more := complete(self._core.events(timeout=0)):
            events += more
        return events

    def stop(self) -> None:
        """Ends the watch."""
        self._core.close()
