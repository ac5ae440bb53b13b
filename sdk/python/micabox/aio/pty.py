"""Terminals in a sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping, Sequence

from micabox import arguments
from micabox.aio.handle import AsyncCommandHandle
from micabox.core.commands import Commands
from micabox.core.terminal import ENVS, SHELL
from micabox.model.command import PtySize


class AsyncPty:
    """Shells with a terminal."""

    def __init__(self, core: Commands) -> None:
        self._core = core

    async def create(
        self,
        size: PtySize,
        user: str | None = None,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = 60,
        cmd: str | Sequence[str] = SHELL,
    ) -> AsyncCommandHandle:
        """Starts bash, or sh where there is none, or another command, with a terminal of this size."""
        given = ENVS | arguments.variables(envs, "envs")
        command = await self._core.start(
            cmd, envs=given, user=user, cwd=cwd, timeout=timeout, size=size, stdin=True
        )
        return AsyncCommandHandle(command)

    async def connect(self, pid: int) -> AsyncCommandHandle:
        """A running terminal, whatever program has started it, as `commands.connect`."""
        return AsyncCommandHandle(await self._core.connect(pid))

    async def resize(self, pid: int, size: PtySize) -> None:
        """Changes a terminal's size."""
        await self._core.started(pid).resize(size)

    async def send_stdin(self, pid: int, data: bytes) -> None:
        """Types something into a terminal."""
        await self._core.started(pid).send_stdin(data)

    async def stream_input(
        self, pid: int, data: AsyncIterable[str | bytes] | Iterable[str | bytes]
    ) -> None:
        """Writes pieces to a terminal, as they come."""
        await self._core.started(pid).stream_input(data)

    async def kill(self, pid: int) -> bool:
        """Kills a terminal's shell; False if there is none."""
        return await self._core.kill(pid)
