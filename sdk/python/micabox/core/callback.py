"""Functions of the caller's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


async def tell(callback: Callable[[Any], Any] | None, value: Any) -> None:
    """Calls a callback, which may be a coroutine function in a program of asyncio."""
    if callback is not None:
        done = callback(value)
        if inspect.isawaitable(done):
            await done
