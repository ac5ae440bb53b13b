"""A command under way: one of a sandbox, or one of mica."""

from __future__ import annotations

import threading
import time
from typing import Any

from micabox.errors import DisconnectedException, ProtocolException, SandboxException
from micabox.io import Channel, Io, sockets
from micabox.protocol.command import WINDOW, CommandState, Output
from micabox.protocol.frames import Frame, encode


class Process:
    """A command, and the connection on which it was started. It is killed when that ends."""

    def __init__(self, io: Io, channel: Channel) -> None:
        self._channel = channel
        self._changed = io.condition()
        self._writing = io.lock()
        # For the state, which several threads may change.
        self._guard = threading.Lock()
        self._is_receiving = False
        self._looks = 0
        self._state = CommandState(channel.number)
        self.asked_for_stdin = False
        self.stdin_ended = False

    @classmethod
    async def start(cls, io: Io, channel: Channel, request: dict[str, Any]) -> Process:
        """Sends the request, and waits until the command runs."""
        process = cls(io, channel)
        process.asked_for_stdin = request.get("stdin") in ("frames", True)
        try:
            await channel.send(encode(channel.number, request | {"window": WINDOW}))
            while process._state.started is None:
                await process._advance(process._looks)
                if process._state.failure:
                    raise process._state.failure
        except BaseException:
            process.close()
            raise
        return process

    @property
    def has_stdin(self) -> bool:
        """Whether the command's stdin is here, and not with another client."""
        return self.asked_for_stdin and (self._state.started or {}).get("stdin") is not False

    @property
    def is_terminal(self) -> bool:
        """Whether a command that was attached to has a terminal."""
        return bool((self._state.started or {}).get("tty"))

    @property
    def pid(self) -> int:
        """Its process ID in the guest."""
        return int((self._state.started or {}).get("pid") or 0)

    @property
    def exited(self) -> dict[str, Any] | None:
        """The message `exited`, once it has come."""
        return self._state.exited

    @property
    def failure(self) -> SandboxException | None:
        """What ended the connection, if it was not the command's end."""
        return self._state.failure

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self._state.is_over

    async def _advance(self, seen: int, timeout: float | None = None) -> bool:
        """Waits until more was received than the caller has seen; False if there was nothing in time.

        One thread or task receives. Others wait for it, without a time limit unless that is 0.
        """
        async with self._changed:
            if self._looks != seen or self._state.is_over:
                return True
            if self._is_receiving:
                if timeout == 0:
                    return False
                await self._changed.wait()
                return True
            self._is_receiving = True
        frames: list[Frame] = []
        try:
            frames = await self._channel.receive(timeout)
            with self._guard:
                for frame in frames:
                    self._state.receive(frame)
        except (DisconnectedException, ProtocolException) as failure:
            with self._guard:
                self._state.lose(failure)
        finally:
            async with self._changed:
                self._is_receiving = False
                self._looks += 1
                self._changed.notify_all()
            if self._state.is_over:
                self._channel.close(True)
        return bool(frames) or self._state.is_over

    async def look(self) -> bool:
        """Receives what has come already; False if the command is over."""
        while not self._state.is_over and await self._advance(self._looks, 0):
            pass
        return not self._state.is_over

    async def output(self, timeout: float | None = None) -> Output | None:
        """The next bytes of stdout or stderr; None at the end, or after `timeout` seconds.

        Raises what ended the connection.
        """
        while True:
            with self._guard:
                seen, is_over = self._looks, self._state.is_over
                output, credit = self._state.take()
            await self._answer(credit)
            if output:
                return output
            if self._state.failure:
                raise self._state.failure
            if is_over or not await self._advance(seen, timeout):
                return None

    def received(self) -> Output | None:
        """The next bytes of stdout or stderr that have come already, for a command that is given up."""
        with self._guard:
            output, _ = self._state.take()
        return output

    async def write(self, data: bytes | memoryview, deadline: float | None = None) -> bool:
        """Writes to stdin as the command reads it; False if it reads no more, or has not read all of it at
        the deadline (of time.monotonic).

        Output that comes meanwhile is kept, so that a command that writes while it reads goes on.
        """
        left = memoryview(data)
        async with self._writing:
            while left and not self.stdin_ended:
                with self._guard:
                    seen = self._looks
                    if self._state.is_over or self._state.stdin_closed:
                        return False
                    frames, count = self._state.stdin(left)
                left = left[count:]
                if not await self._answer(frames):
                    return False
                if left and not count:
                    rest = None if deadline is None else deadline - time.monotonic()
                    if rest is not None and rest <= 0:
                        return False
                    await self._advance(seen, rest)
                    with self._guard:
                        credit = self._state.hold()
                    await self._answer(credit)
            return not left

    async def close_stdin(self) -> None:
        """Ends stdin."""
        async with self._writing:
            if not self.stdin_ended and not self._state.is_over:
                self.stdin_ended = True
                await self._answer(self._state.end_of_stdin())

    async def request(self, message: dict[str, Any]) -> bool:
        """Sends a message about the command; False if it is over."""
        return await self.look() and await self._answer(encode(self._channel.number, message))

    async def _answer(self, frames: bytes) -> bool:
        if not frames:
            return True
        try:
            await self._channel.send(frames)
        except DisconnectedException:
            return False  # what was received says why
        return True

    def leave(self, message: dict[str, Any]) -> None:
        """Sends a last message about the command, and ends the connection. Never raises."""
        if not self._state.is_over:
            self._channel.send_last(encode(self._channel.number, message))

    def close(self) -> None:
        """Ends the connection; the command is killed unless it is over or was released."""
        self._channel.close(self._state.is_over)
        with self._guard:
            self._state.lose(sockets.disconnected())
