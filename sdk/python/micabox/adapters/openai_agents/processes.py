"""Commands of the OpenAI Agents SDK that go on while its model does something else."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import dataclass, field

from agents.sandbox.errors import PtySessionNotFoundError
from agents.sandbox.session.pty_output import collect_pty_output
from agents.sandbox.session.pty_types import (
    PTY_PROCESSES_MAX,
    PtyExecUpdate,
    allocate_pty_process_id,
    clamp_pty_yield_time_ms,
    process_id_to_prune_from_meta,
    resolve_pty_write_yield_time_ms,
)

from micabox import (
    AsyncCommandHandle,
    AsyncSandbox,
    CommandExitException,
    NotFoundException,
    SandboxException,
    SandboxNotRunningException,
)

_MAX_OUTPUT = 1 << 20
# Milliseconds until the model is told what there is so far.
_START = 10_000
_WRITE = 250


@dataclass
class _Process:
    handle: AsyncCommandHandle
    has_stdin: bool
    chunks: deque[bytes] = field(default_factory=deque[bytes])
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False
    exit_code: int | None = None
    used: float = field(default_factory=time.monotonic)
    task: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        """Takes output; keeps the last of it until the model asks."""
        try:
            async for _, data in self.handle.raw():
                self.chunks.append(data)
                while sum(map(len, self.chunks)) > _MAX_OUTPUT:
                    self.chunks.popleft()
                self.changed.set()
            self.exit_code = (await self.handle.wait()).exit_code
        except CommandExitException as failure:
            self.exit_code = failure.exit_code
        except SandboxException as failure:
            self.chunks.append(f"\n{failure}\n".encode())
            self.exit_code = -1
        finally:
            self.is_over = True
            self.changed.set()


class Processes:
    """The commands of a session that have not ended yet, by the numbers that the model knows them by."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox
        self._processes: dict[int, _Process] = {}

    async def add(
        self,
        handle: AsyncCommandHandle,
        has_stdin: bool,
        seconds: float | None,
        max_tokens: int | None,
    ) -> PtyExecUpdate:
        """Takes over a command; tells of its first output."""
        process = _Process(handle, has_stdin)
        process.task = asyncio.create_task(process.listen())
        while len(self._processes) >= PTY_PROCESSES_MAX:
            known = [(n, one.used, one.is_over) for n, one in self._processes.items()]
            oldest = process_id_to_prune_from_meta(known)
            if oldest is None:
                break
            await self._end(self._processes.pop(oldest))
        number = allocate_pty_process_id(set(self._processes))
        self._processes[number] = process
        wait = _START if seconds is None else int(seconds * 1000)
        return await self._update(number, clamp_pty_yield_time_ms(wait), max_tokens)

    async def write(
        self, number: int, chars: str, seconds: float | None, max_tokens: int | None
    ) -> PtyExecUpdate:
        """Types into a command's terminal; tells of its output since the last time."""
        process = self._processes.get(number)
        if process is None:
            raise PtySessionNotFoundError(session_id=number)
        process.used = time.monotonic()
        if chars and not process.has_stdin:
            raise RuntimeError("stdin is not available for this process")
        if chars:
            with contextlib.suppress(NotFoundException):  # it has ended, as is told below
                await process.handle.send_stdin(chars)
        wait = _WRITE if seconds is None else int(seconds * 1000)
        wait = resolve_pty_write_yield_time_ms(yield_time_ms=wait, input_empty=not chars)
        return await self._update(number, wait, max_tokens)

    async def _update(self, number: int, wait: int, max_tokens: int | None) -> PtyExecUpdate:
        process = self._processes[number]
        output, tokens, is_over = await collect_pty_output(
            output_chunks=process.chunks,
            output_lock=process.lock,
            output_notify=process.changed,
            is_done=lambda: process.is_over,
            yield_time_ms=wait,
            max_output_tokens=max_tokens,
        )
        if is_over:
            self._processes.pop(number, None)
        code = process.exit_code if is_over else None
        return PtyExecUpdate(None if is_over else number, output, code, tokens)

    async def end(self) -> None:
        """Ends all of them."""
        processes, self._processes = list(self._processes.values()), {}
        for process in processes:
            await self._end(process)

    async def _end(self, process: _Process) -> None:
        try:
            if not process.is_over:
                await self._sandbox.commands.kill(process.handle.pid)
        except SandboxNotRunningException:
            pass  # they have ended with it
        if process.task:
            process.task.cancel()
