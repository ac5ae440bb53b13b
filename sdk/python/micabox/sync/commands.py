"""Commands in a sandbox."""

from __future__ import annotations

import builtins
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, overload

from micabox import arguments
from micabox.core.capture import DEFAULT_LIMIT, Collector
from micabox.core.commands import Commands as Core
from micabox.core.handle import Text
from micabox.io.blocking import complete
from micabox.model.command import Capture, CommandResult, ProcessInfo
from micabox.sync.handle import CommandHandle

_TIMEOUT = 60


class Commands:
    """Runs commands in a sandbox."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @overload
    def run(
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
    def run(
        self,
        cmd: str | Sequence[str],
        background: Literal[True],
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        cwd: str | None = None,
        on_stdout: None = None,
        on_stderr: None = None,
        stdin: bool | None = None,
        timeout: float | None = _TIMEOUT,
    ) -> CommandHandle: ...

    def run(
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
    ) -> CommandResult | CommandHandle:
        """Runs a command line with /bin/sh, or a program with its arguments.

        It is stopped after `timeout` seconds; 0 or None for no limit. `stdin`: whether it has one, for
        `send_stdin`. In the background, a handle is returned at once, and its `wait` takes the callbacks.
        Raises CommandExitException for another exit code than 0, TimeoutException after the timeout.
        """
        start = self._core.start(
            cmd, envs=envs, user=user, cwd=cwd, timeout=timeout, stdin=bool(stdin)
        )
        command = complete(start)
        if background:
            return CommandHandle(command)
        try:
            return complete(command.wait(on_stdout, on_stderr))
        finally:
            command.close()

    def connect(self, pid: int) -> CommandHandle:
        """A running command, whatever program has started it: its output from now on, its end, and its
        stdin if no other handle has it.

        What it wrote while it had no handle is lost. With several handles, it waits for each of them.
        Raises NotFoundException if no command with this PID runs.
        """
        return CommandHandle(complete(self._core.connect(pid)))

    def capture(
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

        `input` is written to its stdin. After `timeout` seconds it is killed with the processes that it has
        left in the background. Another exit code than 0 raises nothing.
        """
        seconds = arguments.limit(timeout)
        given = None if input is None else arguments.binary(input, "input")
        start = self._core.start(cmd, envs=envs, user=user, cwd=cwd, stdin=input is not None)
        command = complete(start)
        deadline = None if seconds is None else time.monotonic() + seconds
        collector = Collector(command, limit)
        try:
            if given is not None:
                complete(command.feed(given, deadline))
            complete(collector.collect(deadline))
        finally:
            # Kills its process group, if it runs.
            command.close()
        return collector.capture

    def list(self) -> builtins.list[ProcessInfo]:
        """All processes in the sandbox."""
        return complete(self._core.list())

    def kill(self, pid: int) -> bool:
        """Kills a process, a command with its process group; False if there is none."""
        return complete(self._core.kill(pid))

    def send_stdin(self, pid: int, data: str | bytes) -> None:
        """Writes to the stdin of a command that was started here and has a handle."""
        complete(self._core.started(pid).send_stdin(data))

    def stream_input(self, pid: int, data: Iterable[str | bytes]) -> None:
        """Writes pieces to the stdin of a command, as they come."""
        complete(self._core.started(pid).stream_input(data))

    def close_stdin(self, pid: int) -> None:
        """Ends the stdin of a command that was started here and has a handle."""
        complete(self._core.started(pid).close_stdin())
