"""Connections to owners: how they are made, and that a forked child does not keep them open."""

from __future__ import annotations

import atexit
import os
import select
import socket
import weakref
from collections.abc import Callable

from micabox.errors import DisconnectedException, SandboxNotRunningException
from micabox.protocol.frames import PREAMBLE

# linux/fcntl.h; PyPy's `os` lacks it.
_O_PATH: int = getattr(os, "O_PATH", 0o10000000)
# Most bytes of frames that never wait for others that are being sent. What receives sends credit: if it waited for
# what the owner does not receive, because nothing receives what the owner sends, all would wait for each other.
SMALL = 4 << 10
_DISCONNECTED = "the sandbox ended, or its owner closed the connection"
# linux/poll.h; the same.
_POLLRDHUP: int = getattr(select, "POLLRDHUP", 0x2000)
_open: weakref.WeakSet[socket.socket] = weakref.WeakSet()


class NotSent(DisconnectedException):
    """The connection had ended before the last frame was sent: nothing of that was done."""


def connect(directory: str) -> socket.socket:
    """A connection to the owner in this directory, with the preamble sent."""
    try:
        # A socket's address has room for 108 bytes, and a directory's path may have more.
        place = os.open(directory, _O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        # Its directory goes with it.
        raise SandboxNotRunningException(
            "the sandbox is gone: it has been removed", kind="not_running"
        ) from None
    except OSError as error:
        raise SandboxNotRunningException(
            f"the sandbox can't be reached: {error.strerror}", kind="not_running"
        ) from None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(f"/proc/self/fd/{place}/control")
        connection.sendall(PREAMBLE)
    except OSError as error:
        connection.close()
        raise SandboxNotRunningException(
            f"the sandbox does not run: {error.strerror}", kind="not_running"
        ) from None
    finally:
        os.close(place)
    _open.add(connection)
    return connection


def send_now(connection: socket.socket, data: bytes) -> None:
    """Sends a frame without waiting, or ends the connection: half a frame would be in the way of all others."""
    try:
        if connection.send(data, socket.MSG_DONTWAIT) == len(data):
            return
    except OSError:
        pass  # it is over
    shut(connection)


def has_ended(connection: socket.socket) -> bool:
    """Whether either side has ended it, whatever is left to receive."""
    poll = select.poll()
    try:
        poll.register(connection, _POLLRDHUP)
        return bool(poll.poll(0))
    except (OSError, ValueError):
        return True


def shut(connection: socket.socket) -> None:
    """Ends a connection, and wakes what waits on it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the other side was first


def close(connection: socket.socket) -> None:
    """Ends a connection, and frees its descriptor."""
    shut(connection)
    connection.close()


def close_with(owner: object, close: Callable[[], None]) -> None:
    """Calls `close` when nothing refers to the owner any more. Not at the interpreter's end, which closes all
    connections, and may clear modules before objects."""
    weakref.finalize(owner, close).atexit = False


def disconnected() -> DisconnectedException:
    """What is raised at a connection's end."""
    return DisconnectedException(_DISCONNECTED, kind="disconnected")


def not_sent() -> NotSent:
    """What is raised where the connection had ended before."""
    return NotSent(_DISCONNECTED, kind="disconnected")


def _close_copies() -> None:
    # The owner would not see the parent's end while a child has its connections.
    for connection in list(_open):
        try:
            if (copy := connection.detach()) >= 0:
                os.close(copy)
        except OSError:
            pass  # another thread was about to close it


def _close_all() -> None:
    for connection in list(_open):
        connection.close()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_close_copies)
