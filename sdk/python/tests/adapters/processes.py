"""Processes in a sandbox."""

from __future__ import annotations

from micabox import AsyncSandbox
from tests.waiting import until


async def wait_until_gone(sandbox: AsyncSandbox, *commands: str) -> None:
    """Waits until processes with these commands have ended, which takes a moment after they were killed."""

    async def is_so() -> bool:
        return not {one.cmd for one in await sandbox.commands.list()} & set(commands)

    await until(is_so)
