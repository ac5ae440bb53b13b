"""Processes in a sandbox."""

from __future__ import annotations

import asyncio

from micabox import AsyncSandbox


async def gone(sandbox: AsyncSandbox, *commands: str) -> bool:
    """Whether processes with these commands end, which takes a moment after they were killed."""
    for _ in range(100):
        if not {one.cmd for one in await sandbox.commands.list()} & set(commands):
            return True
        await asyncio.sleep(0.05)
    return False
