"""Requests to a sandbox's owner that have one answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from micabox.core.callback import tell
from micabox.errors import ProtocolException, of_failed
from micabox.io import Channel, Io
from micabox.protocol.frames import encode

Hear = Callable[[dict[str, Any]], Any]


async def ask(
    channel: Channel, message: dict[str, Any], answer: str, hear: Hear | None = None
) -> dict[str, Any]:
    """Makes a request, and waits for the answer of this type; the channel stays open.

    `hear` gets the messages before it.
    """
    await channel.send(encode(channel.number, message))
    while True:
        for frame in await channel.receive():
            if frame.kind:
                raise ProtocolException("bytes of a stream, where none was asked for")
            said = frame.message()
            if said.get("type") == "failed":
                raise of_failed(said)
            if said.get("type") == answer:
                return said
            await tell(hear, said)


class Owner:
    """The process that a sandbox belongs to."""

    def __init__(self, io: Io, directory: str) -> None:
        self.io = io
        self.directory = directory

    async def connect(self) -> Channel:
        """A new connection."""
        return await self.io.owner(self.directory)

    async def ask(self, message: dict[str, Any], answer: str) -> dict[str, Any]:
        """Makes a request on a connection of its own."""
        channel = await self.connect()
        try:
            return await ask(channel, message, answer)
        finally:
            channel.close()
