"""A line of limited speed and some delay, between a client and a server on this machine: a proxy for TCP.

What a connection's two ends send is late by half of the round trip, as is the answer to a connection's opening. All
connections share the line's speed, downwards. It has no losses, and no connection begins slowly.
"""

import asyncio
import contextlib
import threading
from typing import Self

PIECE = 16 << 10


class Line:
    """Runs in a thread from `with` to its end."""

    def __init__(self, target: str, rate: float, round_trip: float):
        """`target` is HOST:PORT; `rate` bytes a second; `round_trip` seconds."""
        host, port = target.rsplit(":", 1)
        self.target = (host, int(port))
        self.rate = rate
        self.delay = round_trip / 2
        # Bytes that came down.
        self.received = 0
        self.free_at = 0.0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        opened = asyncio.start_server(self.connected, "127.0.0.1", 0, limit=PIECE)
        server = asyncio.run_coroutine_threadsafe(opened, self.loop).result()
        self.host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The client believes that it is connected: what it sends first waits as long as an opening takes.
        await asyncio.sleep(2 * self.delay)
        there, back = await asyncio.open_connection(*self.target, limit=PIECE)
        await asyncio.gather(
            self.pass_on(reader, back, is_down=False), self.pass_on(there, writer, is_down=True)
        )

    async def pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_down: bool
    ) -> None:
        """Passes bytes on in their order, each piece when its time has come."""
        pieces: asyncio.Queue = asyncio.Queue(1024)

        async def receive() -> None:
            while piece := await reader.read(PIECE):
                due = self.loop.time()
                if is_down:
                    self.free_at = max(self.free_at, due) + len(piece) / self.rate
                    due = self.free_at
                await pieces.put((due + self.delay, piece))
                # The server waits for the line, but for what is under way.
                await asyncio.sleep(max(0, due - self.loop.time() - 0.02))
            await pieces.put((0, b""))

        async def send() -> None:
            while True:
                due, piece = await pieces.get()
                if not piece:
                    break
                await asyncio.sleep(max(0, due - self.loop.time()))
                writer.write(piece)
                await writer.drain()
                if is_down:
                    self.received += len(piece)
            writer.close()

        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(receive(), send())
