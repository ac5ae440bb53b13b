"""Directories that are watched."""

from __future__ import annotations

import threading

from micabox.core.watch import Watch
from micabox.io.blocking import complete
from micabox.io.sockets import close_with
from micabox.model.files import FilesystemEvent


class WatchHandle:
    """A directory that is watched."""

    def __init__(self, core: Watch) -> None:
        self._core = core
        self._lock = threading.Lock()
        close_with(self, core.close)

    def get_new_events(self) -> list[FilesystemEvent]:
        """What has happened since the last call. A change is there when the call that made it has returned."""
        with self._lock:
            return complete(self._core.so_far())

    def stop(self) -> None:
        """Ends the watch."""
        self._core.close()
