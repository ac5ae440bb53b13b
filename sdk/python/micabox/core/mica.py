"""Commands of mica, and requests to `mica serve`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Callable
from typing import Any

from micabox.core import owner
from micabox.core.process import Process
from micabox.errors import SandboxException, of_failed
from micabox.io import Io
from micabox.protocol.frames import STDERR


async def ask(io: Io, message: dict[str, Any], answer: str) -> dict[str, Any]:
    """Makes a request that has one answer."""
    channel = await io.server()
    try:
        said = await owner.ask(channel, message, answer)
    except SandboxException:
        channel.close()
        raise
    except BaseException:
        channel.undo()
        raise
    channel.close()
    return said


async def command(
    io: Io,
    *args: str,
    stdin: AsyncIterable[bytes | memoryview] | None = None,
    on_stdout: Callable[[bytes], Any] | None = None,
    on_stderr: Callable[[str], Any] | None = None,
) -> bytes:
    """Runs a command of mica; returns what it wrote to stdout.

    `on_stdout` gets it instead; `on_stderr` gets the lines for people.
    """
    channel = await io.server()
    message = {"type": "command", "args": list(args), "stdin": stdin is not None}
    process = await Process.start(io, channel, message)
    outputs, errors = bytearray(), bytearray()
    try:
        if stdin is not None:
            async for piece in stdin:
                if not await process.write(piece):
                    break
            await process.close_stdin()
        while output := await process.output():
            if output.stream != STDERR:
                if on_stdout:
                    on_stdout(output.data)
                else:
                    outputs += output.data
                continue
            begun = errors.rfind(b"\n") + 1
            errors += output.data
            if on_stderr:
                *lines, _ = errors[begun:].split(b"\n")
                for line in lines:
                    on_stderr(line.decode(errors="replace"))
    except BaseException:
        process.leave({"type": "signal", "signal": 15})
        raise
    finally:
        process.close()
    exited = process.exited or {}
    code = int(exited.get("code") or 0)
    if code:
        said = errors.decode(errors="replace").strip() or None
        message = said or f"`mica {args[0]}` ended with exit code {code}"
        raise of_failed({"message": message} | dict[str, Any](exited.get("failed") or {}))
    return bytes(outputs)


async def look(io: Io, *args: str) -> Any:
    """Runs a command of mica that prints JSON."""
    return json.loads(await command(io, *args, "--json"))


async def home(io: Io) -> str:
    """The directory of all that mica keeps."""
    channel = await io.server()
    channel.close()
    return channel.home
