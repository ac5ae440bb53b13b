"""Channels for programs whose calls block; several threads may use each."""

from __future__ import annotations

import collections
import queue
import select
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


class Line:
    """A connection to an owner."""

    may_lose = True

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._decoder = Decoder()
        # What waits in recv(2) is woken whenever the other side reads, too.
        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)
        # Nothing of it is in memory that was not received.
        self._buffer = memoryview(bytearray(_RECEIVE))
        self._sending = threading.Lock()
        # Frames that the holder of this lock sends as well.
        self._late: collections.deque[bytes] = collections.deque()

    async def send(self, data: bytes) -> None:
        if len(data) > sockets.SMALL:
            with self._sending:
                self._send_all(self._queued() + data, data)
        else:
            self._late.append(data)
        while self._late and self._sending.acquire(blocking=False):
            try:
                self._send_all(self._queued(), data)
            finally:
                self._sending.release()

    def send_now(self, data: bytes) -> None:
        self._late.append(data)
        while self._late and self._sending.acquire(blocking=False):
            try:
                sockets.send_now(self._socket, self._queued())
            finally:
                self._sending.release()

    def _queued(self) -> bytes:
        pieces: list[bytes] = []
        while self._late:
            pieces.append(self._late.popleft())
        return b"".join(pieces)

    def _send_all(self, data: bytes, last: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError:
            # Other threads' frames may be behind it.
            is_last = data.endswith(last)
            raise (sockets.not_sent() if is_last else sockets.disconnected()) from None
        except BaseException:
            self.shut()  # a part may have been sent
            raise

    async def frames(self, timeout: float | None = None) -> list[Frame]:
        while True:
            try:
                if not self._readable.poll(None if timeout is None else timeout * 1000):
                    return []
                count = self._socket.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except (OSError, ValueError):
                count = 0
            if not count:
                raise sockets.disconnected()
            if frames := self._decoder.feed(self._buffer[:count]):
                return frames

    def has_ended(self) -> bool:
        return sockets.has_ended(self._socket)

    def shut(self) -> None:
        sockets.shut(self._socket)

    def close(self) -> None:
        sockets.close(self._socket)


class OwnerChannel:
    """A connection to an owner, for one request."""

    number = 1

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._line = Line(connection)

    async def send(self, data: bytes) -> None:
        try:
            await self._line.send(data)
        except sockets.NotSent:
            raise sockets.disconnected() from None

    def send_last(self, data: bytes) -> None:
        try:
            self._socket.sendall(data, socket.MSG_DONTWAIT)
        except OSError:
            pass  # it is over
        self.close()

    async def receive(self, timeout: float | None = None) -> list[Frame]:
        while frames := await self._line.frames(timeout):
            if frames := [frame for frame in frames if frame.number == self.number]:
                return frames
        return []

    def close(self, is_over: bool = False) -> None:
        self._line.close()


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

    def close(self, is_over: bool = False) -> None:
        self._server.close(self.number)
        self._frames.put(None)


class BlockingIo:
    """For programs whose calls block."""

    async def owner(self, directory: str) -> Channel:
        return OwnerChannel(sockets.connect(directory))

    async def line(self, directory: str) -> Line:
        return Line(sockets.connect(directory))

    async def server(self) -> ServerChannel:
        return ServerChannel()

    def place(self) -> None:
        return None

    def is_over(self, place: object) -> bool:
        return False

    def condition(self) -> Condition:
        return Condition()

    def lock(self) -> Lock:
        return Lock()
