"""Commands in a sandbox."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from typing import Literal, overload

from micabox import arguments
from micabox.aio.background import spawn
from micabox.aio.handle import AsyncCommandHandle
from micabox.core.capture import DEFAULT_LIMIT, Collector
from micabox.core.commands import Commands as Core
from micabox.core.handle import Text
from micabox.model.command import Capture, CommandResult, ProcessInfo

_TIMEOUT = 60


class AsyncCommands:
    """Runs commands in a sandbox."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @overload
    async def run(
        self,
        cmd: str | Sequence[str],
        background: Literal[False] | None = None,
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        cwd: str | None = None,
        on_stdout: Text | None = None,
        on_stderr: Text | None = None,
        stdin: bool | None = None,
        timeout: float | None = _TIMEOUT,
    ) -> CommandResult: ...

    @overload
    async def run(
        self,
        cmd: str | Sequence[str],
        background: Literal[True],
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        cwd: str | None = None,
        on_stdout: Text | None = None,
        on_stderr: Text | None = None,
        stdin: bool | None = None,
        timeout: float | None = _TIMEOUT,
    ) -> AsyncCommandHandle: ...

    async def run(
        self,
        cmd: str | Sequence[str],
        background: bool | None = None,
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        cwd: str | None = None,
        on_stdout: Text | None = None,
        on_stderr: Text | None = None,
        stdin: bool | None = None,
        timeout: float | None = _TIMEOUT,
    ) -> CommandResult | AsyncCommandHandle:
        """Runs a command line with /bin/sh, or a program with its arguments.

        It is stopped after `timeout` seconds; 0 or None for no limit. `stdin`: whether it has one, for
        `send_stdin`. In the background, a handle is returned at once. Callbacks may be coroutine functions.
        Raises CommandExitException for another exit code than 0, TimeoutException after the timeout.
        """
        command = await self._core.start(
            cmd, envs=envs, user=user, cwd=cwd, timeout=timeout, stdin=bool(stdin)
        )
        if background:
            if not (on_stdout or on_stderr):
                return AsyncCommandHandle(command)
            task = spawn(command.wait(on_stdout, on_stderr))
            return AsyncCommandHandle(command, task)
        try:
            return await command.wait(on_stdout, on_stderr)
        finally:
            command.close()

    async def connect(self, pid: int) -> AsyncCommandHandle:
        """A running command, whatever program has started it: its output from now on, its end, and its
        stdin if no other handle has it.

        What it wrote while it had no handle is lost. With several handles, it waits for each of them.
        Raises NotFoundException if no command with this PID runs.
        """
        return AsyncCommandHandle(await self._core.connect(pid))

    async def capture(
        self,
        cmd: str | Sequence[str],
        *,
        input: bytes | None = None,
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        cwd: str | None = None,
        timeout: float | None = _TIMEOUT,
        limit: int = DEFAULT_LIMIT,
    ) -> Capture:
        """Runs a command as `run` does, and keeps its output as bytes, `limit` of each stream.

        `input` is written to its stdin. After `timeout` seconds, or when the task is cancelled, it is killed
        with the processes that it has left in the background. Another exit code than 0 raises nothing.
        """
        seconds = arguments.limit(timeout)
        given = None if input is None else arguments.binary(input, "input")
        command = await self._core.start(
            cmd, envs=envs, user=user, cwd=cwd, stdin=input is not None
        )
        collector = Collector(command, limit)
        collecting = spawn(collector.collect())
        feeding = None if given is None else spawn(command.feed(given))
        try:
            await asyncio.wait([collecting], timeout=seconds)
            if collecting.done():
                await collecting
        finally:
            collecting.cancel()
            if feeding:
                feeding.cancel()
            # Kills its process group, if it runs.
            command.close()
        return collector.capture

    async def list(self) -> builtins.list[ProcessInfo]:
        """All processes in the sandbox."""
        return await self._core.list()

    async def kill(self, pid: int) -> bool:
        """Kills a process, a command with its process group; False if there is none."""
        return await self._core.kill(pid)

    async def send_stdin(self, pid: int, data: str | bytes) -> None:
        """Writes to the stdin of a command that was started here and has a handle."""
        await self._core.started(pid).send_stdin(data)

    async def stream_input(
        self, pid: int, data: AsyncIterable[str | bytes] | Iterable[str | bytes]
    ) -> None:
        """Writes pieces to the stdin of a command, as they come."""
        await self._core.started(pid).stream_input(data)

    async def close_stdin(self, pid: int) -> None:
        """Ends the stdin of a command that was started here and has a handle."""
        await self._core.started(pid).close_stdin()
