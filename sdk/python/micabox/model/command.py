"""Commands: what is known of those that run, and of those that have ended."""

from __future__ import annotations

from dataclasses import dataclass, field

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


@dataclass(eq=False)
class Capture:
    """A command whose output was kept as bytes. A signal N that ended it makes the exit code 128 + N."""

    exit_code: int | None = None
    """None if its time was over."""
    truncated: bool = False
    """Whether it has written more to stdout or stderr than was kept."""
    pieces: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    """What it has written, in the order in which it came: to stdout (1) or stderr (2)."""

    @property
    def stdout(self) -> bytes:
        """What was kept of its stdout."""
        return b"".join(data for descriptor, data in self.pieces if descriptor == 1)

    @property
    def stderr(self) -> bytes:
        """What was kept of its stderr."""
        return b"".join(data for descriptor, data in self.pieces if descriptor == 2)

    @property
    def output(self) -> bytes:
        """Both, in the order in which they came."""
        return b"".join(data for _, data in self.pieces)


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
