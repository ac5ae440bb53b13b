"""Commands whose output is kept as bytes, and no more of it than is wanted."""

from __future__ import annotations

import time

from micabox.core.commands import Commands
from micabox.core.exec import exit_code
from micabox.core.handle import Command
from micabox.errors import SandboxException
from micabox.model.command import Capture
from micabox.protocol.frames import STDOUT

DEFAULT_LIMIT = 16 << 20


class Collector:
    """Takes a command's output to its end, and keeps the first bytes of each stream."""

    def __init__(self, commands: Commands, command: Command, limit: int) -> None:
        self._commands = commands
        self._process = command.process
        self._pid = command.pid
        self._room = [limit, limit]
        self.capture = Capture()

    async def collect(self, deadline: float | None = None) -> bool:
        """Takes output until the command has ended; False if it has not at the deadline."""
        left = None
        while deadline is None or (left := deadline - time.monotonic()) > 0:
            output = await self._process.output(left)
            if output is None:
                break
            stream = 0 if output.stream == STDOUT else 1
            kept = output.data[: self._room[stream]]
            self._room[stream] -= len(kept)
            self.capture.truncated |= len(kept) < len(output.data)
            if kept:
                self.capture.pieces.append((stream, kept))
        if self._process.exited is None:
            return False
        self.capture.exit_code = exit_code(self._process.exited)
        return True

    async def kill(self) -> None:
        """Kills the command, and what it has left in its process group."""
        try:
            await self._commands.kill(self._pid, group=True)
        except SandboxException:
            pass  # the sandbox has ended, and they with it
