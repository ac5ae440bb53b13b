"""A command in a sandbox, from its start to its result."""

from __future__ import annotations

import codecs
import time
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any

from micabox import arguments
from micabox.core.callback import tell
from micabox.core.exec import exit_code, terminal
from micabox.core.files import pieces_of
from micabox.core.process import Process
from micabox.errors import InUseException, NotFoundException, TimeoutException
from micabox.model.command import CommandExitException, CommandResult, PtySize
from micabox.protocol.command import descriptor
from micabox.protocol.frames import STDOUT

Text = Callable[[str], Any]
Bytes = Callable[[bytes], Any]
Piece = tuple[str | None, str | None, bytes | None]
"""Stdout, stderr, or a terminal's output."""


class Command:
    """A command that was started."""

    def __init__(self, process: Process, timeout: float | None, is_terminal: bool) -> None:
        self.process = process
        self._timeout = timeout
        self._is_terminal = is_terminal
        self._began = time.monotonic()
        self._killed = False
        self._decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in range(2)]
        self._texts: tuple[list[str], list[str]] = ([], [])
        self.is_left = False
        self.result: CommandResult | None = None

    @property
    def pid(self) -> int:
        """Its process ID in the sandbox."""
        return self.process.pid

    def text(self, descriptor: int) -> str:
        """What was taken of its output: of stdout (1), of stderr (2)."""
        return "".join(self._texts[descriptor - 1])

    async def piece(self, timeout: float | None = None) -> Piece | None:
        """The next piece of output; None at its end."""
        while output := await self.process.output(timeout):
            if self._is_terminal:
                return None, None, output.data
            is_stdout = output.stream == STDOUT
            place = 0 if is_stdout else 1
            text = self._decoders[place].decode(output.data)
            if text:
                self._texts[place].append(text)
                return (text, None, None) if is_stdout else (None, text, None)
        self._note_end()
        return None

    async def raw(self) -> tuple[int, bytes] | None:
        """The next output of stdout (1), which a terminal's is too, or stderr (2), which is not kept."""
        output = await self.process.output()
        if output is None:
            self._note_end()
            return None
        return descriptor(output), output.data

    async def wait(
        self,
        on_stdout: Text | None = None,
        on_stderr: Text | None = None,
        on_pty: Bytes | None = None,
    ) -> CommandResult:
        """Waits for its end, and gives its output to the callbacks as it comes."""
        while piece := await self.piece():
            for callback, value in zip((on_stdout, on_stderr, on_pty), piece, strict=True):
                if value is not None:
                    await tell(callback, value)
        result = self._finish()
        if result.exit_code:
            raise CommandExitException(result)
        return result

    def _note_end(self) -> None:
        """Keeps the result, once its end was heard of."""
        exited = self.process.exited
        if exited is None or self.result is not None:
            return
        for decoder, texts in zip(self._decoders, self._texts, strict=True):
            texts.append(decoder.decode(b"", final=True))
        code = exit_code(exited)
        error = f"signal {code - 128} ended it" if "signaled" in exited["status"] else None
        self.result = CommandResult(self.text(2), self.text(1), code, error)

    def _finish(self) -> CommandResult:
        exited = self.process.exited or {}
        code = exit_code(exited)
        spent = time.monotonic() - self._began
        # After SIGKILL the owner does not say that the time was over.
        late = self._timeout is not None and code == 128 + 9 and 0 < self._timeout <= spent
        if (exited.get("timed_out") or late) and not self._killed:
            said = f"the command was stopped after its timeout of {self._timeout:g} s"
            raise TimeoutException(said, kind="timed_out")
        assert self.result is not None
        return self.result

    async def kill(self) -> bool:
        """Kills it; False if it is over."""
        sent = await self.signal(9)
        self._killed |= sent
        return sent

    async def signal(self, number: int) -> bool:
        """Sends it a signal; False if it is over."""
        return await self.process.request({"type": "signal", "signal": number})

    async def resize(self, size: PtySize) -> None:
        """Changes its terminal's size."""
        await self.process.request({"type": "resize", **terminal(size)})

    def _check_stdin(self) -> None:
        if not self.process.asked_for_stdin:
            raise arguments.invalid("the command was started without `stdin=True`")
        if not self.process.has_stdin:
            raise InUseException(
                "another client has the command's stdin, or it has none", kind="in_use"
            )

    async def send_stdin(self, data: str | bytes | memoryview) -> None:
        """Writes to its stdin, as it reads; what it does not read any more is dropped. Raises
        NotFoundException if it has ended."""
        piece = arguments.binary(data, "data")
        self._check_stdin()
        if self.process.stdin_ended:
            raise arguments.invalid("the command's stdin was closed")
        if not await self.process.look():
            gone = NotFoundException(f"the command {self.pid} has ended", kind="not_found")
            raise self.process.failure or gone
        await self.process.write(piece)

    async def stream_input(self, data: AsyncIterable[str | bytes] | Iterable[str | bytes]) -> None:
        """Writes pieces to its stdin, as they come."""
        if isinstance(data, (str, bytes)):
            raise arguments.invalid("data is a series of pieces, and not one of them")
        async for piece in pieces_of(data):
            await self.send_stdin(piece)

    async def close_stdin(self) -> None:
        """Ends its stdin."""
        self._check_stdin()
        if self._is_terminal:
            raise arguments.invalid('a terminal is not closed; send b"\\x04" (Ctrl-D)')
        await self.process.close_stdin()

    async def feed(self, data: memoryview, deadline: float | None = None) -> None:
        """Writes all of its stdin, and ends it; gives up at the deadline."""
        # The end after a part of it would be another stdin.
        if await self.process.write(data, deadline):
            await self.process.close_stdin()

    def disconnect(self) -> None:
        """Lets it continue without this client, which hears no more of it. Its stdin stays open."""
        self.is_left = True
        self.process.leave({"type": "leave"})

    def close(self) -> None:
        """Ends the connection; it is killed if it runs."""
        self.process.close()
