"""Requests to a sandbox's owner that have one answer."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from micabox.core.callback import tell
from micabox.core.link import Link
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


class _Kept:
    """The connection that is kept, of one event loop."""

    def __init__(self, io: Io) -> None:
        self.lock = io.lock()
        self.link: Link | None = None
        # An earlier version counts each connection as use of the sandbox.
        self.is_refused = False


class Owner:
    """The process that a sandbox belongs to."""

    def __init__(self, io: Io, directory: str) -> None:
        self.io = io
        self.directory = directory
        # By event loop; without one, of the whole process.
        self._kept: weakref.WeakKeyDictionary[object, _Kept] = weakref.WeakKeyDictionary()
        # For changes of it, by threads with an event loop each.
        self._guard = threading.Lock()
        _owners.add(self)

    async def connect(self) -> Channel:
        """A new connection."""
        return await self.io.owner(self.directory)

    async def share(self) -> Channel:
        """A channel for a request that is over with its call: on the connection that all of them have."""
        place = self.io.place() or self
        kept = self._kept.get(place)
        if kept is None:
            with self._guard:
                # What is kept of an event loop refers to it: by itself it would not go.
                over = [self._kept.pop(one) for one in list(self._kept) if self.io.is_over(one)]
                kept = self._kept.setdefault(place, _Kept(self.io))
            _close(over)
        async with kept.lock:
            while not kept.is_refused:
                if kept.link and (channel := kept.link.open()):
                    return channel
                kept.link = await Link.connect(self.io, self.directory)
                kept.is_refused = kept.link is None
        return await self.connect()

    def close(self) -> None:
        """Ends the connections that are kept, of all event loops."""
        with self._guard:
            kept = list(self._kept.values())
        _close(kept)

    def forget(self) -> None:
        """In a forked child: the connections are the parent's."""
        self._kept = weakref.WeakKeyDictionary()
        self._guard = threading.Lock()

    async def ask(self, message: dict[str, Any], answer: str) -> dict[str, Any]:
        """Makes a request on a connection of its own."""
        channel = await self.connect()
        try:
            return await ask(channel, message, answer)
        finally:
            channel.close()


def _close(all_kept: list[_Kept]) -> None:
    for kept in all_kept:
        if kept.link:
            kept.link.close()


_owners: weakref.WeakSet[Owner] = weakref.WeakSet()


def _forget() -> None:
    for owner in list(_owners):
        owner.forget()


# After the copies of connections are closed (io/sockets.py): nothing shuts the parent's down.
os.register_at_fork(after_in_child=_forget)
