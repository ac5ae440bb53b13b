"""A command's state: its streams with their credit, and its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from micabox.errors import ProtocolException, SandboxException, of_failed
from micabox.protocol.frames import (
    MAX_DATA,
    MESSAGE,
    STDERR,
    STDIN,
    STDOUT,
    Frame,
    encode,
    encode_data,
)

# Bytes of each output that may be unread: all that an owner takes. So a command in the background ends with as much
# output unread, which is read later.
WINDOW = 1 << 20
_NAMES = {STDOUT: "stdout", STDERR: "stderr"}


@dataclass
class Output:
    """Bytes of stdout or stderr."""

    stream: int
    data: bytes
    granted: bool = False


def descriptor(output: Output) -> int:
    """The number that the output's descriptor has for the command: 1 of stdout, 2 of stderr."""
    return 1 if output.stream == STDOUT else 2


class CommandState:
    """What is known of a command, from its messages; makes the frames that answer them.

    Outputs are granted again when they are taken, so that a command whose output is not read waits.
    """

    def __init__(self, number: int, window: int = WINDOW) -> None:
        self.number = number
        self.started: dict[str, Any] | None = None
        self.exited: dict[str, Any] | None = None
        self.failure: SandboxException | None = None
        self.stdin_window = 0
        self.stdin_closed = False
        self._outputs: deque[Output] = deque()
        self._room = {STDOUT: window, STDERR: window}
        self._owed = {STDOUT: 0, STDERR: 0}
        self._worth_it = window // 4

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self.exited is not None or self.failure is not None

    def receive(self, frame: Frame) -> None:
        """Takes a frame with the command's number."""
        if frame.kind in (STDOUT, STDERR):
            self._room[frame.kind] -= len(frame.body)
            if self._room[frame.kind] < 0:
                raise ProtocolException("more output than was granted")
            if frame.body:
                self._outputs.append(Output(frame.kind, frame.body))
            return
        if frame.kind != MESSAGE:
            raise ProtocolException("stdin, from the command's side")
        message = frame.message()
        match message.get("type"):
            case "started" | "attached":
                self.started = message
                self.stdin_window = int(message.get("window") or 0)
                self.stdin_closed = message.get("stdin") is False
            case "credit":
                self.stdin_window += int(message.get("bytes") or 0)
            case "stdin_closed":
                self.stdin_closed = True
            case "exited":
                self.exited = message
            case "failed":
                self.failure = of_failed(message)
            case _:  # of a later version
                pass

    def lose(self, failure: SandboxException) -> None:
        """The connection has ended."""
        if not self.is_over:
            self.failure = failure

    def take(self) -> tuple[Output | None, bytes]:
        """The next output, and frames to send for it."""
        if not self._outputs:
            return None, b""
        output = self._outputs.popleft()
        return output, b"" if output.granted else self._grant(output)

    def hold(self) -> bytes:
        """Keeps the outputs for later; returns frames with which the command can write more."""
        waiting = [output for output in self._outputs if not output.granted]
        return b"".join(self._grant(output) for output in waiting)

    def _grant(self, output: Output) -> bytes:
        output.granted = True
        stream = output.stream
        self._owed[stream] += len(output.data)
        if self._owed[stream] < self._worth_it or self.is_over:
            return b""
        count, self._owed[stream] = self._owed[stream], 0
        self._room[stream] += count
        credit = {"type": "credit", "stream": _NAMES[stream], "bytes": count}
        return encode(self.number, credit)

    def stdin(self, data: memoryview) -> tuple[bytes, int]:
        """Frames with as much of stdin as was granted, and how many of its bytes they hold."""
        count = min(len(data), self.stdin_window)
        self.stdin_window -= count
        frames = (encode_data(self.number, STDIN, piece) for piece in _pieces(data[:count]))
        return b"".join(frames), count

    def end_of_stdin(self) -> bytes:
        """The frame that ends stdin."""
        return encode_data(self.number, STDIN, b"")


def _pieces(data: memoryview) -> Iterator[bytes]:
    for start in range(0, len(data), MAX_DATA):
        yield bytes(data[start : start + MAX_DATA])
