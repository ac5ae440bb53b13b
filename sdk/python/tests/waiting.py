"""Waits for the true end of something, for as long as a busy machine may take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

# Seconds that only a hang takes.
PATIENCE = 300


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits until something is so; fails when only a hang can be why it is not."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not so after {PATIENCE} s")
        # Sleep: the interval between questions.
        time.sleep(0.01)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """The same in asyncio."""

    async def wait() -> None:
        while not await condition():
            # Sleep: the interval between questions.
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), PATIENCE)


def limits(seconds: float) -> Iterator[float]:
    """Ever longer limits of time, for what is to begin in it."""
    while seconds < PATIENCE:
        yield seconds
        seconds *= 2
    raise AssertionError(f"not begun in {PATIENCE} s")
