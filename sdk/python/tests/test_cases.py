"""Wrong input: the table that all SDKs share, sdk/cases.json."""

import asyncio
import json
import pathlib
import threading
import time
import unittest
from typing import Any, cast

import micabox
from micabox import AsyncSandbox, Sandbox, SandboxException

from .support import IMAGE

_TABLE = json.loads(pathlib.Path(__file__).parents[2].joinpath("cases.json").read_text())
_CASES = cast("list[dict[str, Any]]", _TABLE["cases"])
_OPTIONS: dict[str, Any] = {
    "backend": "host",
    "net": "none",
    "user": "root",
    "tmpfs": ["/small:size=64k"],
}


def _whole(value: Any, box: Sandbox) -> Any:
    """A value of the table, with what stands for another one replaced."""
    match value:
        case {"repeat": [text, count]}:
            return text * count
        case {"of": "box"}:
            return box.name
        case dict():
            return {key: _whole(one, box) for key, one in cast("dict[str, Any]", value).items()}
        case list():
            return [_whole(one, box) for one in cast("list[Any]", value)]
        case _:
            return value


def _limits(case: dict[str, Any]) -> dict[str, Any]:
    given = {"user": case.get("user"), "cwd": case.get("cwd"), "timeout": case.get("seconds")}
    return {name: value for name, value in given.items() if value is not None}


def _blocking(case: dict[str, Any], box: Sandbox) -> None:
    match case["do"]:
        case "create":
            options = _OPTIONS | case["options"]
            Sandbox.create(case.get("image", IMAGE), **options)
        case "connect":
            Sandbox.connect(case["sandbox"])
        case "run":
            box.commands.run(case["cmd"], **_limits(case))
        case "attach":
            box.commands.connect(case["pid"])
        case "read":
            box.files.read(case["path"])
        case "write":
            box.files.write(case["path"], case["data"])
        case "host":
            box.get_host(case["port"])
        case "fork":
            box.fork(case["count"])
        case other:
            raise AssertionError(other)


async def _of_asyncio(case: dict[str, Any], name: str, ended: bool) -> None:
    box = None if ended else await AsyncSandbox.connect(name)
    match case["do"]:
        case "create":
            options = _OPTIONS | case["options"]
            await AsyncSandbox.create(case.get("image", IMAGE), **options)
        case "connect":
            await AsyncSandbox.connect(case["sandbox"])
        case "run" if box:
            await box.commands.run(case["cmd"], **_limits(case))
        case "attach" if box:
            await box.commands.connect(case["pid"])
        case "read" if box:
            await box.files.read(case["path"])
        case "write" if box:
            await box.files.write(case["path"], case["data"])
        case "fork" if box:
            await box.fork(case["count"])
        case _:  # as in blocking programs
            raise unittest.SkipTest("")


def _kill_soon(box: Sandbox) -> None:
    def kill() -> None:
        while "sleep 100" not in [one.cmd for one in box.commands.list()]:
            time.sleep(0.01)
        box.kill()

    threading.Thread(target=kill).start()


class CasesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.box = Sandbox.create(IMAGE, **cast("Any", _OPTIONS))
        self.addCleanup(lambda: self.box.kill())

    def _check(self, case: dict[str, Any], failure: SandboxException) -> None:
        expected = getattr(micabox, f"{case['error']}Exception")
        self.assertIsInstance(failure, expected, repr(failure))
        for field in ("kind", "reason"):
            if field in case:
                self.assertEqual(getattr(failure, field), case[field], repr(failure))

    def _another_box(self) -> Sandbox:
        box = Sandbox.create(IMAGE, **cast("Any", _OPTIONS))
        self.addCleanup(box.kill)
        return box

    def test_wrong_input_has_the_same_error_in_every_language(self) -> None:
        self.assertGreater(len(_CASES), 20)
        for case in _CASES:
            with self.subTest(case["name"]):
                own = "ended" in case or "killed" in case
                box = self._another_box() if own else self.box
                if "ended" in case:
                    box.kill()
                if "killed" in case:
                    _kill_soon(box)
                with self.assertRaises(SandboxException) as raised:
                    _blocking(_whole(case, self.box), box)
                self._check(case, raised.exception)

    def test_wrong_input_has_the_same_error_under_asyncio(self) -> None:
        for case in _CASES:
            if "ended" in case:
                continue
            with self.subTest(case["name"]):
                box = self._another_box() if "killed" in case else self.box
                if "killed" in case:
                    _kill_soon(box)
                try:
                    asyncio.run(_of_asyncio(_whole(case, self.box), box.name, False))
                except SandboxException as failure:
                    self._check(case, failure)
                except unittest.SkipTest:
                    pass
                else:
                    self.fail("nothing was raised")
