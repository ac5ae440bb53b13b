"""What a client needs of its surroundings; the same for blocking and asyncio programs.

The client is written once, as coroutines over this interface. In a blocking program none of them ever
suspends, so [`complete`](blocking.py) runs them without an event loop.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Protocol

from micabox.protocol.frames import Frame


class Channel(Protocol):
    """A connection on which one request is made, and its answers come."""

    number: int

    async def send(self, data: bytes) -> None:
        """Sends whole frames."""
        ...

    def send_last(self, data: bytes) -> None:
        """Sends whole frames, and ends the connection. Never raises."""
        ...

    async def receive(self, timeout: float | None = None) -> list[Frame]:
        """Waits for frames with this number; none after `timeout` seconds.

        Raises DisconnectedException at the connection's end.
        """
        ...

    def close(self, is_over: bool = False) -> None:
        """Ends the request, and what it has started unless that is over; wakes what waits for frames."""
        ...


class Line(Protocol):
    """A connection to an owner, on which many requests are made."""

    may_lose: bool
    """Whether frames may be lost when what receives is interrupted."""

    async def send(self, data: bytes) -> None:
        """Sends whole frames. Raises NotSent if the last of them certainly wasn't sent."""
        ...

    def send_now(self, data: bytes) -> None:
        """Sends a frame without waiting. Never raises."""
        ...

    async def frames(self) -> list[Frame]:
        """Waits for frames. Raises DisconnectedException at the connection's end."""
        ...

    def has_ended(self) -> bool:
        """Whether the connection has ended, whatever is left to receive."""
        ...

    def shut(self) -> None:
        """Ends the connection, for what waits for frames too; from any thread."""
        ...

    def close(self) -> None:
        """Ends the connection, for which nothing waits, and frees its descriptor."""
        ...


class ServerChannel(Channel, Protocol):
    """A channel to `mica serve`."""

    home: str
    """The directory of all that mica keeps."""

    def undo(self) -> None:
        """Ends the request without its answer; sandboxes that it makes all the same are killed."""
        ...


class Condition(Protocol):
    """A lock that is given back while its holder waits."""

    async def __aenter__(self) -> None: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

    async def wait(self) -> Any:
        """Waits until something is notified."""
        ...

    def notify_all(self) -> None:
        """Wakes all that wait."""
        ...


class Io(Protocol):
    """Makes channels, locks and conditions."""

    async def owner(self, directory: str) -> Channel:
        """Connects to the owner of the sandbox in this directory."""
        ...

    async def line(self, directory: str) -> Line:
        """Connects to the same owner, for many requests."""
        ...

    async def server(self) -> ServerChannel:
        """A channel to this process's `mica serve`, which is started if there is none."""
        ...

    def place(self) -> object:
        """The event loop without which the channels made here do not work; None if they need none."""
        ...

    def is_over(self, place: object) -> bool:
        """Whether it is such an event loop, and closed."""
        ...

    def condition(self) -> Condition:
        """A lock, and a way to wait for what happens under it."""
        ...

    def lock(self) -> AbstractAsyncContextManager[Any]:
        """A lock between threads, or between tasks."""
        ...
