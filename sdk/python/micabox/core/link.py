"""A connection to an owner that is kept: many requests at once, each with a number of its own."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from micabox.errors import (
    DisconnectedException,
    InvalidArgumentException,
    ProtocolException,
    SandboxException,
)
from micabox.io import Io, Line, sockets
from micabox.protocol.frames import MESSAGE, Frame, encode

# What asks whether the connection may be kept.
_GREETING = 1
# The largest number of a request.
_LAST = (1 << 32) - 1
_SIGKILL = {"type": "signal", "signal": 9}
# Most connections of a process that wait for a request; its limit of descriptors may be 1,024.
_MOST_IDLE = 64
# They, the least recently used first. Without a lock, which could be held when a process forks, or
# when a finalizer makes a request: a dict's methods are atomic.
_idle: dict[weakref.ref[Link], None] = {}


def _forget(gone: weakref.ref[Link], idle: Any = _idle) -> None:
    idle.pop(gone, None)  # the global may be cleared first, at the interpreter's end


class _Request:
    """What has come about a request, and was not taken."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.has_started = False


class Link:
    """The connection. One thread or task receives for all that wait; none does while nothing waits."""

    def __init__(self, io: Io, line: Line) -> None:
        self._line = line
        self._changed = io.condition()
        self._requests: dict[int, _Request] = {}
        # Commands that were given up before they had started.
        self._doomed: set[int] = set()
        self._last = _GREETING
        # For requests that begin and end, and for the connection's end, which is no request's.
        self._guard = threading.Lock()
        self._is_receiving = False
        # Whether it is closed with its last request.
        self._is_over = False
        self._lost: SandboxException | None = None
        self._reference: weakref.ref[Link] = weakref.ref(self, _forget)
        hash(self._reference)  # it keeps that, and a dead one has none
        # A request that goes on keeps it.
        sockets.close_with(self, line.close)

    @classmethod
    async def connect(cls, io: Io, directory: str) -> Link | None:
        """A connection that does not keep the sandbox in use; None if its owner, of an earlier version, has
        none."""
        line = await io.line(directory)
        try:
            await line.send(encode(_GREETING, {"type": "uncount"}))
            while True:
                for frame in await line.frames():
                    if frame.number == _GREETING and frame.kind == MESSAGE:
                        if frame.message().get("type") == "uncounted":
                            return cls(io, line)
                        line.close()
                        return None
        except BaseException:
            line.close()
            raise

    def open(self) -> LinkChannel | None:
        """A channel for a request; None if the connection is over."""
        with self._guard:
            if self._is_over or self._lost or self._line.has_ended():
                # Answers to requests under way may be left to receive.
                self._finish()
                return None
            _idle.pop(self._reference, None)
            self._last = self._next()
            self._requests[self._last] = _Request()
            return LinkChannel(self, self._last)

    def _finish(self) -> None:
        """Takes no more requests, and closes the connection if there are none. Needs the guard."""
        self._is_over = True
        if not self._requests:
            _idle.pop(self._reference, None)
            self._line.close()

    def _next(self) -> int:
        """The next number that no request has; it is in 32 bits."""
        number = self._last % _LAST + 1
        while number in self._requests or number in self._doomed:
            number = number % _LAST + 1
        return number

    async def send(self, data: bytes) -> None:
        """Sends whole frames. Raises NotSent if the last of them certainly wasn't sent."""
        if self._lost:
            raise sockets.not_sent()
        await self._line.send(data)

    async def receive(self, number: int) -> list[Frame]:
        """Waits for frames with this number."""
        while True:
            async with self._changed:
                request = self._requests.get(number)
                if request is None:
                    raise sockets.disconnected()
                if request.frames:
                    frames, request.frames = request.frames, []
                    return frames
                if self._lost:
                    raise self._lost
                if self._is_receiving:
                    await self._changed.wait()
                    continue
                self._is_receiving = True
            await self._receive()

    async def _receive(self) -> None:
        frames: list[Frame] = []
        try:
            frames = await self._line.frames()
        except (DisconnectedException, ProtocolException) as failure:
            self._lost = failure
        except BaseException:
            if self._line.may_lose:
                self.close()
            raise
        finally:
            async with self._changed:
                self._is_receiving = False
                started = [frame.number for frame in frames if self._take(frame)]
                self._changed.notify_all()
            for number in started:
                self._line.send_now(encode(number, _SIGKILL))

    def _take(self, frame: Frame) -> bool:
        """Hands a frame to its request. Returns whether it is the start of one that was given up."""
        request = self._requests.get(frame.number)
        if request is not None:
            request.frames.append(frame)
            request.has_started |= frame.kind == MESSAGE
            return False
        if frame.number not in self._doomed or frame.kind != MESSAGE:
            return False
        self._doomed.remove(frame.number)
        return frame.message().get("type") == "started"

    def end(self, number: int) -> None:
        """Forgets a request that is over."""
        if number not in self._requests:
            return  # what has received its end has done so
        with self._guard:
            if not self._requests.pop(number, None) or self._requests:
                return
            # The start of one that was given up would not be received.
            if self._is_over or self._lost or self._doomed:
                self._finish()
                return
            _idle[self._reference] = None
        while len(_idle) > _MOST_IDLE:
            try:
                oldest = next(iter(_idle))
            except (RuntimeError, StopIteration):
                continue  # another thread has changed it meanwhile
            _idle.pop(oldest, None)
            if link := oldest():
                link.close_idle()

    def kill(self, number: int) -> None:
        """Ends a request with its command. Never raises."""
        with self._guard:
            request = self._requests.pop(number, None)
            if request is None:
                return
            if not self._requests:
                # At once, and without an answer that nothing waits for.
                self._finish()
                return
            if self._lost:
                return
            if not request.has_started:
                self._doomed.add(number)
                return
        self._line.send_now(encode(number, _SIGKILL))

    def close_idle(self) -> None:
        """Closes the connection unless a request has begun meanwhile."""
        # Its holder begins a request or ends them all; it is this thread if a finalizer runs.
        if self._guard.acquire(blocking=False):
            try:
                if not self._requests:
                    self._finish()
            finally:
                self._guard.release()

    def close(self) -> None:
        """Ends the connection, and all that goes on; from any thread."""
        with self._guard:
            self._lost = self._lost or sockets.disconnected()
            self._finish()
            if self._requests:
                # They may be another event loop's: there the last one closes it.
                self._line.shut()


class LinkChannel:
    """A request on such a connection."""

    def __init__(self, link: Link, number: int) -> None:
        self._link = link
        self.number = number

    async def send(self, data: bytes) -> None:
        await self._link.send(data)

    def send_last(self, data: bytes) -> None:
        raise InvalidArgumentException("an operation on files is not left", kind="invalid")

    async def receive(self, timeout: float | None = None) -> list[Frame]:
        if timeout is not None:
            raise InvalidArgumentException("an operation on files has no timeout", kind="invalid")
        return await self._link.receive(self.number)

    def close(self, is_over: bool = False) -> None:
        (self._link.end if is_over else self._link.kill)(self.number)


# After the copies of connections are closed (io/sockets.py).
os.register_at_fork(after_in_child=_idle.clear)
