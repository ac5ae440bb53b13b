"""Commands under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from micabox.core.handle import Bytes, Command, Piece, Text
from micabox.io.sockets import close_with
from micabox.model.command import CommandResult


class AsyncCommandHandle:
    """A command that was started in the background. Without a handle it continues, and nothing of it is
    heard any more. It waits when more than 1 MiB of its output was not taken.

    With callbacks, a task takes its output and calls them, also when there is no handle any more.
    """

    def __init__(self, command: Command, task: asyncio.Task[CommandResult] | None = None) -> None:
        self._command = command
        self._task = task
        if task is None:
            close_with(self, command.disconnect)

    @property
    def pid(self) -> int:
        """Its process ID in the sandbox."""
        return self._command.pid

    @property
    def stdout(self) -> str:
        """Its stdout, as far as it was taken."""
        return self._command.text(1)

    @property
    def stderr(self) -> str:
        """Its stderr, as far as it was taken."""
        return self._command.text(2)

    @property
    def exit_code(self) -> int | None:
        """Its exit code, once `wait` has found its end."""
        return self._command.result.exit_code if self._command.result else None

    @property
    def error(self) -> str | None:
        """Why it has ended, if a signal ended it, once `wait` has found its end."""
        return self._command.result.error if self._command.result else None

    async def __aiter__(self) -> AsyncIterator[Piece]:
        """Its output as it comes: stdout, stderr, or a terminal's."""
        while piece := await self._command.piece():
            yield piece

    async def raw(self) -> AsyncIterator[tuple[int, bytes]]:
        """Its output as it comes: of stdout and of a terminal (1), or of stderr (2). It is not kept for
        `stdout`, `stderr` and `wait`."""
        while output := await self._command.raw():
            yield output

    async def wait(
        self,
        on_pty: Bytes | None = None,
        on_stdout: Text | None = None,
        on_stderr: Text | None = None,
    ) -> CommandResult:
        """Waits for its end. Raises CommandExitException for another exit code than 0."""
        if self._task is not None:
            return await asyncio.shield(self._task)
        return await self._command.wait(on_stdout, on_stderr, on_pty)

    async def kill(self) -> bool:
        """Kills it; False if it is over."""
        return await self._command.kill()

    def disconnect(self) -> None:
        """Lets it continue without this handle."""
        if self._task is not None:
            self._task.cancel()
        self._command.disconnect()

    async def send_stdin(self, data: str | bytes) -> None:
        """Writes to its stdin, as it reads."""
        await self._command.send_stdin(data)

    async def close_stdin(self) -> None:
        """Ends its stdin."""
        await self._command.close_stdin()
