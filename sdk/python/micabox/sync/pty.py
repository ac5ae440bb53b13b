"""Terminals in a sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from micabox.core.commands import Commands
from micabox.core.terminal import ENVS, SHELL
from micabox.io.blocking import complete
from micabox.model.command import PtySize
from micabox.sync.handle import CommandHandle


class Pty:
    """Shells with a terminal."""

    def __init__(self, core: Commands) -> None:
        self._core = core

    def create(
        self,
        size: PtySize,
        user: str | None = None,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = 60,
        cmd: str | Sequence[str] = SHELL,
    ) -> CommandHandle:
        """Starts bash, or sh where there is none, or another command, with a terminal of this size."""
        given = {**ENVS, **(envs or {})}
        start = self._core.start(
            cmd, envs=given, user=user, cwd=cwd, timeout=timeout, size=size, stdin=True
        )
        return CommandHandle(complete(start))

    def resize(self, pid: int, size: PtySize) -> None:
        """Changes a terminal's size."""
        complete(self._core.started(pid).resize(size))

    def send_stdin(self, pid: int, data: bytes) -> None:
        """Types something into a terminal."""
        complete(self._core.started(pid).send_stdin(data))

    def kill(self, pid: int) -> bool:
        """Kills a terminal's shell; False if there is none."""
        return complete(self._core.kill(pid))
