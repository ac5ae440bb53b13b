"""Channels for programs whose calls block; several threads may use each."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from micabox import server
from micabox.io import Channel, sockets
from micabox.protocol.frames import Decoder, Frame

T = TypeVar("T")
_RECEIVE = 256 << 10


def complete(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that blocks where another would suspend; needs no event loop."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise RuntimeError("a coroutine of the blocking client was suspended")


class Lock:
    """A lock between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class Condition:
    """A condition for threads."""

    def __init__(self) -> None:
        self._condition = threading.Condition()

    async def __aenter__(self) -> None:
        self._condition.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._condition.release()

    async def wait(self) -> None:
        self._condition.wait()

    def notify_all(self) -> None:
        self._condition.notify_all()


class OwnerChannel:
    """A connection to an owner."""

    number = 1

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._decoder = Decoder()
        self._sending = threading.Lock()

    async def send(self, data: bytes) -> None:
        with self._sending:
            try:
                self._socket.sendall(data)
            except OSError:
                raise sockets.disconnected() from None

    def send_last(self, data: bytes) -> None:
        try:
            self._socket.sendall(data, socket.MSG_DONTWAIT)
        except OSError:
            pass  # it is over
        self.close()

    async def receive(self, timeout: float | None = None) -> list[Frame]:
        while True:
            try:
                # With MSG_DONTWAIT or poll, a sender's timeout stays as it is.
                if timeout is not None and not _readable(self._socket, timeout):
                    return []
                data = self._socket.recv(_RECEIVE)
            except (OSError, ValueError):
                data = b""
            if not data:
                raise sockets.disconnected()
            if frames := [f for f in self._decoder.feed(data) if f.number == self.number]:
                return frames

    def close(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other side was first
        self._socket.close()


def _readable(connection: socket.socket, timeout: float) -> bool:
    import select

    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(timeout * 1000))


class ServerChannel:
    """A request to `mica serve`."""

    def __init__(self) -> None:
        self._frames: queue.SimpleQueue[list[Frame] | None] = queue.SimpleQueue()
        self._server = server.running()
        self.number = self._server.open(self._frames.put)
        self.home = self._server.home

    async def send(self, data: bytes) -> None:
        self._server.send(data)

    async def receive(self, timeout: float | None = None) -> list[Frame]:
        try:
            frames = self._frames.get(timeout=timeout)
        except queue.Empty:
            return []
        if frames is None:
            raise server.ended()
        return frames

    def send_last(self, data: bytes) -> None:
        self._server.send_last(self.number, data)
        self._frames.put(None)

    def undo(self) -> None:
        self._server.undo(self.number)
        while not self._frames.empty():
            self._server.undone(self.number, self._frames.get() or [])

    def close(self) -> None:
        self._server.close(self.number)
        self._frames.put(None)


class BlockingIo:
    """For programs whose calls block."""

    async def owner(self, directory: str) -> Channel:
        return OwnerChannel(sockets.connect(directory))

    async def server(self) -> ServerChannel:
        return ServerChannel()

    def place(self) -> None:
        return None

    def condition(self) -> Condition:
        return Condition()

    def lock(self) -> Lock:
        return Lock()
