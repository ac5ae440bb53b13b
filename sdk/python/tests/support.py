"""A store with the sample image, and sandboxes of it on this machine's own kernel."""

from __future__ import annotations

import asyncio
import atexit
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from collections.abc import Awaitable, Callable

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
IMAGE = "sample"
# Seconds that only a hang takes.
PATIENCE = 300


def _store() -> pathlib.Path:
    # Longer than the address of a socket may be.
    home = pathlib.Path(tempfile.mkdtemp(prefix=f"mica-python-{'long' * 20}-"))
    maker = os.getpid()

    def remove() -> None:
        if os.getpid() == maker:
            shutil.rmtree(home, ignore_errors=True)

    # Before micabox is imported: what is registered first is called last.
    atexit.register(remove)
    os.environ["MICABOX_HOME"] = str(home)
    os.environ.setdefault("MICABOX_MICA", str(REPOSITORY / "target" / "debug" / "mica"))
    os.environ.setdefault("MICABOX_GUEST", str(REPOSITORY / "target" / "guest"))
    sample = subprocess.check_output([REPOSITORY / "scripts" / "sample-image"], text=True).strip()
    mica("load", sample, "--name", IMAGE)
    return home


def mica(*args: str) -> str:
    """What a command of mica prints."""
    return subprocess.check_output([os.environ["MICABOX_MICA"], *args], text=True)


HOME = _store()

from micabox import AsyncSandbox, Sandbox


def free_port() -> int:
    """A TCP port of this machine that nothing uses."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def make() -> Sandbox:
    """A sandbox whose commands are root's, in `/`."""
    return Sandbox.create(IMAGE, backend="host", user="root", workdir="/")


async def make_async() -> AsyncSandbox:
    """As `make`."""
    return await AsyncSandbox.create(IMAGE, backend="host", user="root", workdir="/")


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits until something is so; fails when only a hang can be why it is not."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not so after {PATIENCE} s")
        time.sleep(0.01)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """The same in asyncio."""

    async def wait() -> None:
        while not await condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), PATIENCE)


def python(program: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a Python of its own."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "sdk" / "python")}
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(program), *args],
        env=environment,
        capture_output=True,
        check=False,
        text=True,
        timeout=PATIENCE,
    )


def children(pid: int) -> set[str]:
    """Processes that a process has started."""
    tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/children")
    return {child for task in tasks for child in task.read_text().split()}


class SandboxTest(unittest.TestCase):
    """Tests that share a sandbox."""

    box: Sandbox

    @classmethod
    def setUpClass(cls) -> None:
        cls.box = make()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.box.kill()


class AsyncSandboxTest(unittest.IsolatedAsyncioTestCase):
    """Tests with a sandbox each."""

    box: AsyncSandbox

    async def asyncSetUp(self) -> None:
        self.box = await make_async()

    async def asyncTearDown(self) -> None:
        await self.box.kill()
