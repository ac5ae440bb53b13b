"""Commands of mica, and requests to `mica serve`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Callable
from typing import Any

from micabox import arguments
from micabox.core import owner
from micabox.core.callback import tell
from micabox.core.process import Process
from micabox.errors import SandboxException, of_failed
from micabox.io import Io
from micabox.protocol.frames import STDERR, encode

# Ends a command, if it runs.
_END = {"type": "signal", "signal": 15}


async def ask(
    io: Io, message: dict[str, Any], answer: str, hear: owner.Hear | None = None
) -> dict[str, Any]:
    """Makes a request that has one answer; `hear` gets the messages before it."""
    channel = await io.server()
    is_telling = False

    async def tell_hearer(said: dict[str, Any]) -> None:
        nonlocal is_telling
        is_telling = True
        await tell(hear, said)
        is_telling = False

    try:
        said = await owner.ask(channel, message, answer, tell_hearer)
    except BaseException as error:
        # The caller has given up; otherwise the request has failed.
        if is_telling or not isinstance(error, SandboxException):
            channel.undo()
        else:
            channel.close()
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

    `on_stdout` gets it instead; `on_stderr` gets the lines of stderr.
    """
    words = [arguments.text(word, "a name") for word in args]
    channel = await io.server()
    message = {"type": "command", "args": words, "stdin": stdin is not None}
    try:
        process = await Process.start(io, channel, message)
    except BaseException:
        channel.send_last(encode(channel.number, _END))
        raise
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
            errors += output.data
            if on_stderr:
                *lines, errors = errors.split(b"\n")
                for line in lines:
                    await tell(on_stderr, line.decode(errors="replace"))
    except BaseException:
        process.leave(_END)
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
