"""Commands: what is known of those that run, and of those that have ended."""

from __future__ import annotations

from dataclasses import dataclass

from micabox.errors import SandboxException


@dataclass(frozen=True)
class PtySize:
    """A terminal's size, in characters."""

    rows: int
    cols: int


@dataclass(eq=False)
class CommandResult:
    """A command that has ended. A signal N that ended it makes the exit code 128 + N."""

    stderr: str
    stdout: str
    exit_code: int
    error: str | None = None


class CommandExitException(SandboxException, CommandResult):
    """A command has ended with another exit code than 0."""

    def __init__(self, result: CommandResult) -> None:
        CommandResult.__init__(self, result.stderr, result.stdout, result.exit_code, result.error)
        said = result.error or result.stderr.strip()
        message = f"the command ended with exit code {result.exit_code}"
        SandboxException.__init__(self, f"{message}: {said}" if said else message)


@dataclass(frozen=True)
class ProcessInfo:
    """A process in a sandbox."""

    pid: int
    parent: int
    """PID of the process that it is a child of."""
    uid: int
    """Number of its user."""
    state: str
    """As in proc(5): R runs, S sleeps, D waits for a disk, Z has ended, T is stopped."""
    processor_time: float
    """Seconds."""
    memory: int
    """Bytes that are resident."""
    cmd: str
    """Its arguments with spaces between them, or its name; without control characters."""
