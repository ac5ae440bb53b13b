"""A store with the sample image, and sandboxes of it on this machine's own kernel."""

from __future__ import annotations

import atexit
import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest
from collections.abc import Generator

from .waiting import PATIENCE, wait_until

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
IMAGE = "sample"


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

from micabox import AsyncSandbox, InUseException, Sandbox, images


@contextlib.contextmanager
def closed_port() -> Generator[int]:
    """A TCP port of this machine on which nothing listens meanwhile."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def make() -> Sandbox:
    """A sandbox whose commands are root's, in `/`."""
    return Sandbox.create(IMAGE, backend="host", user="root", workdir="/")


async def make_async() -> AsyncSandbox:
    """As `make`."""
    return await AsyncSandbox.create(IMAGE, backend="host", user="root", workdir="/")


def remove_image(image: str) -> None:
    """Removes an image once nothing uses it: its first sandbox may end before its layers are unpacked."""

    def is_removed() -> bool:
        try:
            images.remove(image)
        except InUseException:
            return False
        return True

    wait_until(is_removed)


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
    found = set[str]()
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            found.update(task.read_text().split())
    return found


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
