"""What tests of connections share."""

from __future__ import annotations

import contextlib
import gc
import socket
from collections.abc import Generator
from typing import Any
from unittest import mock

from micabox.core import link
from micabox.io import sockets


@contextlib.contextmanager
def opened() -> Generator[list[socket.socket], None, None]:
    """The connections to owners that are made meanwhile."""
    made: list[socket.socket] = []
    connect = sockets.connect

    def noted(directory: str) -> socket.socket:
        connection = connect(directory)
        made.append(connection)
        return connection

    with mock.patch.object(sockets, "connect", noted):
        yield made


@contextlib.contextmanager
def none_idle() -> Generator[dict[Any, None], None, None]:
    """Sets this process's idle connections aside; gives those that become idle meanwhile."""
    gc.collect()
    idle: dict[Any, None] = vars(link)["_idle"]
    waiting = dict(idle)
    idle.clear()
    try:
        yield idle
    finally:
        idle.update(waiting)
