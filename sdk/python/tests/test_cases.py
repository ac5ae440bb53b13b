"""Wrong input, and ends at bad moments: the table that all SDKs share, sdk/cases.json."""

import asyncio
import contextlib
import gc
import json
import os
import pathlib
import signal
import socket
import threading
import time
import unittest
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import micabox
from micabox import AsyncImages, AsyncSandbox, Sandbox, SandboxException, images, server
from micabox.core import commands, files

from .support import IMAGE, children, mica
from .waiting import wait_until

_TABLE = json.loads(pathlib.Path(__file__).parents[2].joinpath("cases.json").read_text())
_CASES = cast("list[dict[str, Any]]", _TABLE["cases"])
_OPTIONS: dict[str, Any] = {
    "backend": "host",
    "net": "none",
    "user": "root",
    "tmpfs": ["/small:size=64k"],
}


def _limits(case: dict[str, Any]) -> dict[str, Any]:
    given = {"user": case.get("user"), "cwd": case.get("cwd"), "timeout": case.get("seconds")}
    return {name: value for name, value in given.items() if value is not None}


def _pieces() -> Iterator[bytes]:
    while True:
        yield b"x" * 1000
        # Sleep: the caller's data comes slowly.
        time.sleep(0.001)


async def _async_pieces() -> AsyncIterator[bytes]:
    while True:
        yield b"x" * 1000
        # Sleep: the caller's data comes slowly.
        await asyncio.sleep(0.001)


def _blocking(case: dict[str, Any], box: Sandbox) -> None:
    match case["do"]:
        case "create":
            options = _OPTIONS | case["options"]
            Sandbox.create(case.get("image", IMAGE), **options)
        case "connect":
            Sandbox.connect(case["sandbox"])
        case "pull":
            images.pull(case["image"])
        case "run":
            box.commands.run(case["cmd"], **_limits(case))
        case "attach":
            box.commands.connect(case["pid"])
        case "take_stdin":
            handle = box.commands.run(case["cmd"], background=True, stdin=True)
            Sandbox.connect(box.name).commands.connect(handle.pid).send_stdin("x")
        case "read":
            box.files.read(case["path"])
        case "write":
            data = case["data"]
            box.files.write(case["path"], data if isinstance(data, str) else _pieces())
        case "host":
            box.get_host(case["port"])
        case "fork":
            box.fork(case["count"])
        case other:
            raise AssertionError(other)


async def _of_asyncio(case: dict[str, Any], name: str) -> None:
    match case["do"]:
        case "create":
            options = _OPTIONS | case["options"]
            await AsyncSandbox.create(case.get("image", IMAGE), **options)
        case "connect":
            await AsyncSandbox.connect(case["sandbox"])
        case "pull":
            await AsyncImages().pull(case["image"])
        case "host":
            (await AsyncSandbox.connect(name)).get_host(case["port"])
        case "run":
            box = await AsyncSandbox.connect(name)
            await box.commands.run(case["cmd"], **_limits(case))
        case "attach":
            await (await AsyncSandbox.connect(name)).commands.connect(case["pid"])
        case "take_stdin":
            box = await AsyncSandbox.connect(name)
            handle = await box.commands.run(case["cmd"], background=True, stdin=True)
            other = await AsyncSandbox.connect(name)
            try:
                await (await other.commands.connect(handle.pid)).send_stdin("x")
            finally:
                await handle.kill()
        case "read":
            await (await AsyncSandbox.connect(name)).files.read(case["path"])
        case "write":
            data = case["data"]
            given = data if isinstance(data, str) else _async_pieces()
            await (await AsyncSandbox.connect(name)).files.write(case["path"], given)
        case "fork":
            await (await AsyncSandbox.connect(name)).fork(case["count"])
        case other:
            raise AssertionError(other)


class _Case:
    """A case of the table, with what it needs around it."""

    def __init__(self, case: dict[str, Any], shared: Callable[[], Sandbox]) -> None:
        self._silent = socket.socket()
        self._silent.bind(("127.0.0.1", 0))
        self._silent.listen()
        self._asked: list[socket.socket] = []
        self._happening: threading.Thread | None = None
        self.before: str | None = case.get("before")
        self.during: str | None = case.get("during")
        # Of its own, where it does not stay as it is.
        self.has_own = self.before is not None or self.during is not None
        self.box = Sandbox.create(IMAGE, **_OPTIONS) if self.has_own else shared()
        self.told = cast("dict[str, Any]", self._whole(case))
        if self.before is not None:
            self._happen(self.before)
            # Until then it may be about to end.
            wait_until(lambda: self.box.sandbox_id not in mica("ps", "--quiet", "--no-trunc"))

    def _whole(self, value: Any) -> Any:
        """A value of the table, with what stands for another one replaced."""
        match value:
            case {"repeat": [text, count]}:
                return text * count
            case {"of": "box"}:
                return self.box.name
            case {"silent": True}:
                return f"localhost:{self._silent.getsockname()[1]}/x"
            case dict():
                given = cast("dict[str, Any]", value)
                return {key: self._whole(one) for key, one in given.items()}
            case list():
                return [self._whole(one) for one in cast("list[Any]", value)]
            case _:
                return value

    def runs(self) -> list[int]:
        """The processes of the case's command in its sandbox."""
        cmd = str(self.told["cmd"]).removeprefix("exec ")
        return [one.pid for one in self.box.commands.list() if one.cmd == cmd]

    def wait_until_under_way(self) -> None:
        """Returns once the operation is."""
        match self.told["do"]:
            case "run":
                wait_until(lambda: bool(self.runs()))
            case "write":
                wait_until(lambda: self.box.files.exists(self.told["path"]))
            case _:
                self._asked.append(self._silent.accept()[0])

    def happen_soon(self) -> None:
        """What is to happen while the operation is under way."""

        def happen() -> None:
            self.wait_until_under_way()
            self._happen(self.during or "")

        if self.during is not None:
            self._happening = threading.Thread(target=happen)
            self._happening.start()

    def _happen(self, what: str) -> None:
        match what:
            case "killed":
                self.box.kill()
            case "killed_by_another":
                Sandbox.connect(self.box.name).kill()
            case "command_killed_by_another":
                Sandbox.connect(self.box.name).commands.kill(self.runs()[0])
            case "helper_killed":
                helper = server.running().pid
                os.kill(helper, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):  # another thread knows already
                    os.waitid(os.P_PID, helper, os.WEXITED | os.WNOWAIT)
            case other:
                raise AssertionError(other)

    def left(self) -> tuple[Any, ...]:
        """What this process and its `mica serve` have: sandboxes, commands, threads, descriptors. Some of it may be
        about to go."""
        gc.collect()
        helper = server.running().pid
        return (
            set(mica("ps", "--quiet").split()),
            children(helper),
            len(os.listdir(f"/proc/{helper}/task")),
            len(os.listdir(f"/proc/{helper}/fd")),
            threading.active_count(),
            len(os.listdir("/proc/self/fd")) - len(self._asked),
        )

    def close(self) -> None:
        """Ends what is left of it."""
        if self._happening:
            self._happening.join()
        if self.has_own:
            self.box.kill()
        for connection in (self._silent, *self._asked):
            connection.close()


class CasesTest(unittest.TestCase):
    box: Sandbox | None = None

    def setUp(self) -> None:
        self.box = None
        self.addCleanup(lambda: self.box and self.box.kill())

    def _shared(self) -> Sandbox:
        # It ends with a `mica serve` that is killed.
        if self.box is None or not self.box.is_running():
            self.box = Sandbox.create(IMAGE, **_OPTIONS)
        return self.box

    def _close(self, case: _Case) -> None:
        case.close()
        if "helper_killed" in (case.before, case.during):
            wait_until(lambda: self.box is None or not self.box.is_running())

    def _check(self, case: dict[str, Any], failure: SandboxException) -> None:
        expected = getattr(micabox, f"{case['error']}Exception")
        self.assertIsInstance(failure, expected, repr(failure))
        for field in ("kind", "reason"):
            if field in case:
                self.assertEqual(getattr(failure, field), case[field], repr(failure))

    def test_a_sandbox_may_be_silent_for_as_long_as_in_every_language(self) -> None:
        limits = _TABLE["limits"]
        self.assertEqual(files.ANSWER_TIMEOUT, limits["files"])
        self.assertEqual(commands.ANSWER_TIMEOUT, limits["processes"])

    def test_wrong_input_has_the_same_error_in_every_language(self) -> None:
        self.assertGreater(len(_CASES), 20)
        for told in _CASES:
            if told.get("during") == "cancelled":
                continue  # Ctrl-C, which test_process has
            with self.subTest(told["name"]):
                case = _Case(told, self._shared)
                try:
                    case.happen_soon()
                    with self.assertRaises(SandboxException) as raised:
                        _blocking(case.told, case.box)
                    self._check(told, raised.exception)
                finally:
                    self._close(case)

    def test_wrong_input_has_the_same_error_under_asyncio(self) -> None:
        for told in _CASES:
            # A new client does not even find a sandbox that has ended.
            if told.get("during") == "cancelled" or "before" in told:
                continue
            with self.subTest(told["name"]):
                case = _Case(told, self._shared)
                try:
                    case.happen_soon()
                    with self.assertRaises(SandboxException) as raised:
                        asyncio.run(_of_asyncio(case.told, case.box.name))
                    self._check(told, raised.exception)
                finally:
                    self._close(case)

    def test_a_cancelled_task_leaves_nothing(self) -> None:
        cancelled = [told for told in _CASES if told.get("during") == "cancelled"]
        self.assertGreater(len(cancelled), 3)
        for told in cancelled:
            with self.subTest(told["name"]):
                case = _Case(told, self._shared)
                try:
                    # What waits for the operation looks at files, and keeps a connection.
                    case.box.files.exists("/")
                    before = case.left()
                    asyncio.run(self._cancel(case))
                    self._wait_until_no_more_is_left(case, before)
                    if told["do"] == "run":
                        wait_until(lambda case=case: not case.runs())
                    self.assertEqual(case.box.commands.run("echo on").stdout, "on\n")
                finally:
                    self._close(case)

    def _wait_until_no_more_is_left(self, case: _Case, before: tuple[Any, ...]) -> None:
        def is_no_more() -> bool:
            return all(now <= then for now, then in zip(case.left(), before, strict=True))

        try:
            wait_until(is_no_more)
        except AssertionError:
            self.assertEqual(case.left(), before)
            raise

    async def _cancel(self, case: _Case) -> None:
        task = asyncio.create_task(_of_asyncio(case.told, case.box.name))
        await asyncio.to_thread(case.wait_until_under_way)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
