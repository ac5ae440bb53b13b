"""Terminals in a sandbox."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from micabox import arguments
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
        given = ENVS | arguments.variables(envs, "envs")
        start = self._core.start(
            cmd, envs=given, user=user, cwd=cwd, timeout=timeout, size=size, stdin=True
        )
        return CommandHandle(complete(start))

    def connect(self, pid: int) -> CommandHandle:
        """A running terminal, whatever program has started it, as `commands.connect`."""
        return CommandHandle(complete(self._core.connect(pid)))

    def resize(self, pid: int, size: PtySize) -> None:
        """Changes a terminal's size."""
        complete(self._core.started(pid).resize(size))

    def send_stdin(self, pid: int, data: bytes) -> None:
        """Types something into a terminal."""
        complete(self._core.started(pid).send_stdin(data))

    def stream_input(self, pid: int, data: Iterable[str | bytes]) -> None:
        """Writes pieces to a terminal, as they come."""
        complete(self._core.started(pid).stream_input(data))

    def kill(self, pid: int) -> bool:
        """Kills a terminal's shell; False if there is none."""
        return complete(self._core.kill(pid))
