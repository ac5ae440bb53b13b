"""Commands whose output is kept as bytes, and no more of it than is wanted."""

from __future__ import annotations

import time

from micabox.core.exec import exit_code
from micabox.core.handle import Command
from micabox.model.command import Capture
from micabox.protocol.command import Output, descriptor

DEFAULT_LIMIT = 16 << 20


class Collector:
    """Takes a command's output to its end, and keeps the first bytes of each stream."""

    def __init__(self, command: Command, limit: int) -> None:
        self._process = command.process
        self._room = {1: limit, 2: limit}
        self.capture = Capture()

    async def collect(self, deadline: float | None = None) -> bool:
        """Takes output until the command has ended; False if it has not at the deadline."""
        left = None
        while deadline is None or (left := deadline - time.monotonic()) > 0:
            output = await self._process.output(left)
            if output is None:
                break
            self._keep(output)
        if self._process.exited is None:
            while output := self._process.received():
                self._keep(output)
            return False
        self.capture.exit_code = exit_code(self._process.exited)
        return True

    def _keep(self, output: Output) -> None:
        stream = descriptor(output)
        kept = output.data[: self._room[stream]]
        self._room[stream] -= len(kept)
        self.capture.truncated |= len(kept) < len(output.data)
        if kept:
            self.capture.pieces.append((stream, kept))
