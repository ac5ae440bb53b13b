"""Commands in a sandbox."""

from __future__ import annotations

import builtins
import weakref
from collections.abc import Mapping, Sequence

from micabox import arguments
from micabox.core.exec import Defaults
from micabox.core.handle import Command
from micabox.core.owner import Owner
from micabox.core.process import Process
from micabox.errors import CommandStartException, NotFoundException, ProtocolException
from micabox.model.command import CommandExitException, ProcessInfo, PtySize
from micabox.protocol.frames import STDOUT

# The agent's list of processes.
_PROCESSES = "\0processes"
_MAX_LIST = 16 << 20
ANSWER_TIMEOUT = 60_000
_TICKS = 100.0


class Commands:
    """Starts commands, and finds those that it has started."""

    def __init__(self, owner: Owner, defaults: Defaults) -> None:
        self._owner = owner
        self._defaults = defaults
        self._started: weakref.WeakValueDictionary[int, Command] = weakref.WeakValueDictionary()

    async def start(
        self,
        cmd: str | Sequence[str],
        *,
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        size: PtySize | None = None,
        stdin: bool = False,
    ) -> Command:
        """Starts a shell's command line, or a program with its arguments."""
        argv = ["/bin/sh", "-c", cmd] if isinstance(cmd, str) else cmd
        request = self._defaults.exec(
            argv, envs=envs, user=user, cwd=cwd, timeout=timeout, size=size, stdin=stdin
        )
        process = await Process.start(self._owner.io, await self._owner.connect(), request)
        command = Command(process, timeout, size is not None)
        self._started[command.pid] = command
        return command

    async def connect(self, pid: int) -> Command:
        """The command with this PID, whatever has started it, with its output from now on."""
        request = {
            "type": "attach",
            "pid": arguments.pid(pid),
            "stdin": "frames",
            "stdout": "frames",
            "stderr": "frames",
        }
        process = await Process.start(self._owner.io, await self._owner.connect(), request)
        command = Command(process, None, process.is_terminal)
        first = self._started.get(command.pid)
        if first is None or first.is_left or first.process.is_over or not first.process.has_stdin:
            self._started[command.pid] = command
        return command

    def started(self, pid: int) -> Command:
        """The command with this PID, which has a handle here."""
        command = self._started.get(arguments.pid(pid))
        if command is None or command.is_left:
            raise NotFoundException(
                f"no command with PID {pid} has a handle here", kind="not_found"
            )
        return command

    async def list(self) -> builtins.list[ProcessInfo]:
        """All processes in the sandbox."""
        request = {
            "type": "exec",
            "argv": [_PROCESSES],
            "answer_timeout": ANSWER_TIMEOUT,
            "stdout": "frames",
        }
        process = await Process.start(self._owner.io, await self._owner.connect(), request)
        said = bytearray()
        try:
            while output := await process.output():
                if output.stream == STDOUT:
                    said += output.data
                if len(said) > _MAX_LIST:
                    raise ProtocolException("the guest's list of processes has no end")
        finally:
            process.close()
        # The first line has the uptime.
        lines = said.decode(errors="replace").splitlines()[1:]
        return [_process(line) for line in lines]

    async def kill(self, pid: int) -> bool:
        """Kills a process, and what it has started if it is a command; False if there is none."""
        command = self._started.get(arguments.pid(pid))
        if command is not None and not command.is_left:
            return await command.kill()
        try:
            other = await self.connect(pid)
        except NotFoundException:
            return await self._kill(pid)
        # One of an owner's commands, with what it has started.
        try:
            return await other.kill()
        finally:
            other.disconnect()

    async def _kill(self, pid: int) -> bool:
        try:
            killer = await self.start(f"kill -9 {pid}", user="0", cwd="/", timeout=60)
            await killer.wait()
        except (CommandExitException, CommandStartException):
            return False
        return True


def _process(line: str) -> ProcessInfo:
    words = line.split(" ", 8)
    if len(words) < 8:
        raise ProtocolException("the guest's list of processes is malformed")
    try:
        numbers = [int(words[place]) for place in (0, 1, 2, 5, 7)]
    except ValueError:
        raise ProtocolException("the guest's list of processes is malformed") from None
    pid, parent, uid, ticks, resident = numbers
    cmd = words[8] if len(words) > 8 else ""
    return ProcessInfo(pid, parent, uid, words[3], ticks / _TICKS, resident * 1024, cmd)
