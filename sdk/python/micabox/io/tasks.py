"""Channels for programs with an event loop of asyncio; several tasks may use each."""

from __future__ import annotations

import asyncio
import socket
from collections import deque

from micabox import server
from micabox.errors import DisconnectedException
from micabox.io import Channel, sockets
from micabox.protocol.frames import Decoder, Frame

_RECEIVE = 256 << 10
# Turns of the event loop in which what has come already is read.
_TURNS = 4


class OwnerChannel:
    """A connection to an owner."""

    number = 1

    def __init__(
        self,
        connection: socket.socket,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._socket = connection
        self._reader = reader
        self._writer = writer
        self._decoder = Decoder()

    async def send(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except (OSError, RuntimeError):
            raise sockets.disconnected() from None

    def send_last(self, data: bytes) -> None:
        try:
            self._writer.write(data)
        except (OSError, RuntimeError):
            pass  # it is over
        self.close()

    async def receive(self, timeout: float | None = None) -> list[Frame]:
        while True:
            try:
                if timeout == 0:
                    data = await self._arrived()
                else:
                    data = await asyncio.wait_for(self._reader.read(_RECEIVE), timeout)
            except asyncio.TimeoutError:
                return []
            except OSError:
                data = b""
            if not data:
                raise sockets.disconnected()
            if frames := [f for f in self._decoder.feed(data) if f.number == self.number]:
                return frames

    async def _arrived(self) -> bytes:
        """What has come already; `wait_for` without any time would not even begin to read."""
        reading = asyncio.ensure_future(self._reader.read(_RECEIVE))
        try:
            for _ in range(_TURNS):
                await asyncio.sleep(0)
                if reading.done():
                    return reading.result()
            raise asyncio.TimeoutError
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    def close(self, is_over: bool = False) -> None:
        try:
            self._writer.close()
        except RuntimeError:
            self._socket.close()  # the event loop was closed first


class Line:
    """A connection to an owner that is kept. The event loop has nothing of it while nothing waits for it, and
    need not be told of its end."""

    may_lose = False

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._decoder = Decoder()
        # Nothing of it is in memory that was not received.
        self._buffer = memoryview(bytearray(_RECEIVE))
        self._sending = asyncio.Lock()
        # Tasks that have this lock, or wait for it; and what the next of them sends as well.
        self._senders = 0
        self._late = b""
        self._waiting: asyncio.Future[None] | None = None

    async def send(self, data: bytes) -> None:
        if len(data) <= sockets.SMALL and self._senders:
            self._late += data
            return
        self._senders += 1
        try:
            async with self._sending:
                await self._send_all(data)
        finally:
            self._senders -= 1
            # One that waited may have been cancelled.
            self.send_now(b"")

    async def _send_all(self, data: bytes) -> None:
        while self._late or data:
            late, self._late = self._late, b""
            try:
                await asyncio.get_running_loop().sock_sendall(self._socket, late + data)
            except (OSError, ValueError):
                raise (sockets.not_sent() if data else sockets.disconnected()) from None
            except BaseException:
                self.shut()  # a part may have been sent
                raise
            data = b""

    def send_now(self, data: bytes) -> None:
        self._late += data
        if self._late and not self._senders:
            data, self._late = self._late, b""
            sockets.send_now(self._socket, data)

    async def frames(self) -> list[Frame]:
        while True:
            try:
                count = self._socket.recv_into(self._buffer)
            except BlockingIOError:
                await self._readable()
                continue
            except OSError:
                count = 0
            if not count:
                raise sockets.disconnected()
            if frames := self._decoder.feed(self._buffer[:count]):
                return frames

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        descriptor = self._socket.fileno()
        loop.add_reader(descriptor, self._wake)
        try:
            await self._waiting
        finally:
            # Closed, it is not the loop's any more.
            if self._socket.fileno() == descriptor:
                loop.remove_reader(descriptor)
            self._waiting = None

    def _wake(self) -> None:
        if self._waiting and not self._waiting.done():
            self._waiting.set_result(None)

    def has_ended(self) -> bool:
        return sockets.has_ended(self._socket)

    def shut(self) -> None:
        sockets.shut(self._socket)

    def close(self) -> None:
        sockets.close(self._socket)


class ServerChannel:
    """A request to `mica serve`."""

    def __init__(self, process: server.Server) -> None:
        # Filled by another thread.
        self._frames: deque[list[Frame] | None] = deque()
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._server = process
        self.number = process.open(self._put)
        self.home = process.home

    def _put(self, frames: list[Frame] | None) -> None:
        self._frames.append(frames)
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:
            pass  # the event loop was closed, with the task that waits

    async def send(self, data: bytes) -> None:
        self._server.send(data)

    async def receive(self, timeout: float | None = None) -> list[Frame]:
        while not self._frames:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), timeout)
            except asyncio.TimeoutError:
                return []
        frames = self._frames.popleft()
        if frames is None:
            raise server.ended()
        return frames

    def send_last(self, data: bytes) -> None:
        self._server.send_last(self.number, data)
        self._end()

    def undo(self) -> None:
        self._server.undo(self.number)
        while self._frames:
            self._server.undone(self.number, self._frames.popleft() or [])

    def close(self, is_over: bool = False) -> None:
        self._server.close(self.number)
        self._end()

    def _end(self) -> None:
        self._frames.append(None)
        self._changed.set()


class TaskIo:
    """For programs with an event loop of asyncio."""

    async def owner(self, directory: str) -> Channel:
        connection = sockets.connect(directory)
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=4 * _RECEIVE)
        return OwnerChannel(connection, reader, writer)

    async def line(self, directory: str) -> Line:
        return Line(sockets.connect(directory))

    async def server(self) -> ServerChannel:
        # Its start blocks for as long as a process takes to start.
        process = await asyncio.to_thread(server.running)
        try:
            return ServerChannel(process)
        except DisconnectedException:
            return ServerChannel(await asyncio.to_thread(server.running))

    def place(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def is_over(self, place: object) -> bool:
        return isinstance(place, asyncio.AbstractEventLoop) and place.is_closed()

    def condition(self) -> asyncio.Condition:
        return asyncio.Condition()

    def lock(self) -> asyncio.Lock:
        return asyncio.Lock()
