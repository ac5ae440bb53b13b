"""Commands under way."""

from __future__ import annotations

from collections.abc import Iterator

from micabox.core.handle import Bytes, Command, Piece, Text
from micabox.io.blocking import complete
from micabox.io.sockets import close_with
from micabox.model.command import CommandResult


class CommandHandle:
    """A command that was started in the background. Without a handle it continues, and nothing of it is
    heard any more. It waits when more than 1 MiB of its output was not taken."""

    def __init__(self, command: Command) -> None:
        self._command = command
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

    def __iter__(self) -> Iterator[Piece]:
        """Its output as it comes: stdout, stderr, or a terminal's."""
        while piece := complete(self._command.piece()):
            yield piece

    def raw(self) -> Iterator[tuple[int, bytes]]:
        """Its output as it comes: of stdout and of a terminal (1), or of stderr (2). It is not kept for
        `stdout`, `stderr` and `wait`."""
        while output := complete(self._command.raw()):
            yield output

    def wait(
        self,
        on_pty: Bytes | None = None,
        on_stdout: Text | None = None,
        on_stderr: Text | None = None,
    ) -> CommandResult:
        """Waits for its end. Raises CommandExitException for another exit code than 0."""
        return complete(self._command.wait(on_stdout, on_stderr, on_pty))

    def kill(self) -> bool:
        """Kills it; False if it is over."""
        return complete(self._command.kill())

    def disconnect(self) -> None:
        """Lets it continue without this handle."""
        self._command.disconnect()

    def send_stdin(self, data: str | bytes) -> None:
        """Writes to its stdin, as it reads."""
        complete(self._command.send_stdin(data))

    def close_stdin(self) -> None:
        """Ends its stdin."""
        complete(self._command.close_stdin())
