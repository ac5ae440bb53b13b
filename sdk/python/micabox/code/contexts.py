"""Interpreters that stay in a sandbox."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from importlib import resources
from typing import Any

from micabox import arguments
from micabox.code.model import Execution, ExecutionError, OutputMessage, Result
from micabox.core.callback import tell
from micabox.core.commands import Commands
from micabox.core.process import Process
from micabox.errors import GuestException, TimeoutException
from micabox.io import Io
from micabox.protocol.frames import STDOUT
from micabox.protocol.replies import ReplyDecoder

_MAX_REPLY = 256 << 20
# How long an interrupted interpreter may take until it is killed.
_GRACE = 5.0
# When it is interrupted again: it drops an interrupt that comes before it has read what to run.
_AGAIN = 0.1
_FORMATS = ("text", "html", "markdown", "svg", "latex", "png", "jpeg")


def _source(code: Any) -> str:
    if not isinstance(code, str):
        raise arguments.invalid(f"code is a string, and not of type {type(code).__name__}")
    return code


class Interpreter:
    """A Python in a sandbox that runs `driver.py`."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._decoder = ReplyDecoder(_MAX_REPLY)
        self._replies: list[dict[str, Any]] = []
        self._errors = bytearray()
        self._requests = 0
        # Whether the last of them may go on.
        self._is_running = False

    @classmethod
    async def start(cls, commands: Commands) -> Interpreter:
        """Starts it, and waits until it takes code."""
        driver = resources.files(__package__ or "").joinpath("driver.py").read_text()
        command = await commands.start(["python3", "-c", driver], stdin=True)
        interpreter = cls(command.process)
        try:
            reply = await interpreter._reply(None)
            if reply is None or reply.get("type") != "ready":
                raise GuestException("the sandbox's python3 did not begin", kind="guest")
        except BaseException:
            command.close()
            raise
        return interpreter

    async def _reply(self, deadline: float | None) -> dict[str, Any] | None:
        """The next reply; None after the deadline."""
        while not self._replies:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            output = await self.process.output(left)
            if output is None:
                if not self.process.is_over:
                    return None
                said = self._errors.decode(errors="replace").strip()
                raise GuestException(
                    f"the sandbox's python3 has ended\n{said}".strip(), kind="guest"
                )
            if output.stream == STDOUT:
                self._replies += self._decoder.feed(output.data)
            else:
                self._errors = (self._errors + output.data)[-4096:]
        return self._replies.pop(0)

    async def run(
        self,
        code: str,
        envs: dict[str, str],
        timeout: float | None,
        heard: Callable[[Execution, dict[str, Any]], Any],
    ) -> Execution:
        """Runs code; `heard` is told each reply."""
        execution = Execution()
        deadline = time.monotonic() + timeout if timeout else None
        # What its caller has given up may go on.
        if await self._interrupt_to_the_end(deadline):
            await self._ask(code, envs)
            try:
                while reply := await self._next(deadline):
                    if reply.get("type") == "end":
                        execution.execution_count = int(reply["count"])
                        return execution
                    await tell(lambda reply: heard(execution, reply), reply)
            except BaseException:
                await self._interrupt()
                raise
        if not await self._interrupt_to_the_end(time.monotonic() + _GRACE):
            self.process.close()
        raise TimeoutException(f"the code was interrupted after {timeout:g} s", kind="timed_out")

    async def _ask(self, code: str, envs: dict[str, str]) -> None:
        self._requests += 1
        request = {"request": self._requests, "code": code, "envs": envs}
        body = json.dumps(request).encode()
        try:
            await self.process.write(struct.pack("<I", len(body)) + body)
        except BaseException:
            self.process.close()  # a part of a request may be with it
            raise
        self._is_running = True

    async def _next(self, deadline: float | None) -> dict[str, Any] | None:
        """The next reply to the last request; None after the deadline."""
        while reply := await self._reply(deadline):
            if reply.get("request") == self._requests:
                self._is_running = reply.get("type") != "end"
                return reply
        return None

    async def _interrupt_to_the_end(self, deadline: float | None) -> bool:
        """Interrupts what runs until it has ended; False if it has not at the deadline."""
        while self._is_running:
            await self._interrupt()
            again = time.monotonic() + _AGAIN
            again = again if deadline is None else min(again, deadline)
            while await self._next(again):
                if not self._is_running or time.monotonic() > again:
                    break
            # Looked at last: what has come until then counts.
            if deadline is not None and time.monotonic() > deadline:
                break
        return not self._is_running

    async def _interrupt(self) -> None:
        await self.process.request({"type": "signal", "signal": 2})


class Contexts:
    """A sandbox's interpreters, by name."""

    def __init__(self, io: Io, commands: Commands) -> None:
        self._commands = commands
        self._io = io
        self._locks: dict[str, AbstractAsyncContextManager[Any]] = {}
        self._interpreters: dict[str, Interpreter] = {}
        self._place: object = None

    async def run(
        self,
        code: str,
        context: str,
        envs: Mapping[str, str] | None,
        timeout: float | None,
        on_stdout: Callable[[OutputMessage], Any] | None,
        on_stderr: Callable[[OutputMessage], Any] | None,
        on_result: Callable[[Result], Any] | None,
        on_error: Callable[[ExecutionError], Any] | None,
    ) -> Execution:
        """Runs code in a context, one piece at a time."""
        code = _source(code)
        context = arguments.text(context, "a context")
        variables = arguments.variables(envs, "envs")
        limit = arguments.limit(timeout)

        async def heard(execution: Execution, reply: dict[str, Any]) -> None:
            match reply.get("type"):
                case "stdout":
                    execution.logs.stdout.append(str(reply["text"]))
                    await tell(on_stdout, OutputMessage(str(reply["text"]), time.time_ns()))
                case "stderr":
                    execution.logs.stderr.append(str(reply["text"]))
                    await tell(on_stderr, OutputMessage(str(reply["text"]), time.time_ns(), True))
                case "result":
                    result = Result(**{name: reply.get(name) for name in _FORMATS})
                    execution.results.append(result)
                    await tell(on_result, result)
                case "error":
                    fields = (str(reply[name]) for name in ("name", "value", "traceback"))
                    execution.error = ExecutionError(*fields)
                    await tell(on_error, execution.error)
                case _:
                    pass

        self._settle()
        async with self._locks.setdefault(context, self._io.lock()):
            interpreter = self._interpreters.get(context)
            if interpreter is None or interpreter.process.is_over:
                interpreter = await Interpreter.start(self._commands)
                self._interpreters[context] = interpreter
            return await interpreter.run(code, variables, limit, heard)

    def _settle(self) -> None:
        """Leaves what was made in an event loop that is not the running one: it does not work here."""
        place = self._io.place()
        if place is not self._place:
            self.close()
            self._locks.clear()
            self._place = place

    def close(self) -> None:
        """Ends all interpreters."""
        for context in list(self._interpreters):
            self.end(context)

    def end(self, context: str) -> None:
        """Ends a context's interpreter."""
        interpreter = self._interpreters.pop(context, None)
        if interpreter:
            interpreter.process.close()
