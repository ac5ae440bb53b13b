"""Values that no request can have: they are refused before anything is sent."""

import math
import unittest
from collections.abc import Callable
from typing import Any

from micabox import (
    AsyncSandbox,
    CommandResult,
    InvalidArgumentException,
    PtySize,
    Sandbox,
    images,
    volumes,
)
from micabox.protocol.frames import encode

from .support import IMAGE, AsyncSandboxTest, SandboxTest

Attempt = Callable[[Any], Any]

# Values of a type that the functions do not take.
NUMBER: Any = 5
TEXT: Any = "1"
BYTES: Any = b"x"
LONE = "\udcff"


def _create(**options: Any) -> Sandbox:
    return Sandbox.create(IMAGE, backend="host", **options)


OPTIONS: list[dict[str, Any]] = [
    {"metadata": {"a": LONE}},
    {"metadata": {"a=b": "c"}},
    {"metadata": {"": "c"}},
    {"metadata": {"a": b"c"}},
    {"label": {"a=b": "c"}},
    {"name": LONE},
    {"name": b"x"},
    {"cpus": math.nan},
    {"envs": {LONE: "x"}},
    {"envs": {"A=B": "x"}},
    {"envs": {"A": None}},
    {"envs": {"A": "a\0b"}},
    {"envs": ["A=b"]},
    {"env": {"": "x"}},
    {"workdir": "not/absolute"},
    {"timeout": 1e18},
    {"timeout": -1},
]

REQUESTS: list[Attempt] = [
    lambda box: box.commands.run(NUMBER),
    lambda box: box.commands.run(["echo", NUMBER]),
    lambda box: box.commands.run(["echo", "a\0b"]),
    lambda box: box.commands.run(["echo", "\ud800"]),
    lambda box: box.commands.run("true", envs={"A": True}),
    lambda box: box.commands.run("true", envs={"A": None}),
    lambda box: box.commands.run("true", envs={"A=B": "x"}),
    lambda box: box.commands.run("true", user=0),
    lambda box: box.commands.run("true", user=LONE),
    lambda box: box.commands.run("true", cwd=0),
    lambda box: box.commands.run("true", timeout=1e18),
    lambda box: box.commands.run("true", timeout=10**400),
    lambda box: box.commands.run("true", timeout=math.nan),
    lambda box: box.commands.run("true", timeout=-1),
    lambda box: box.commands.run("true", timeout="1"),
    lambda box: box.commands.capture("true", timeout="1"),
    lambda box: box.commands.capture("cat", input=5),
    lambda box: box.commands.connect(-1),
    lambda box: box.commands.connect(TEXT),
    lambda box: box.commands.kill(-1),
    lambda box: box.commands.send_stdin(2**40, "x"),
    lambda box: box.files.read("/etc/passwd", user=0),
    lambda box: box.files.read(NUMBER),
    lambda box: box.files.list("/", depth=0),
    lambda box: box.files.list("/", depth=True),
    lambda box: box.files.list("/", depth=1.5),
    lambda box: box.pty.create(PtySize(70_000, 80)),
    lambda box: box.run_code(NUMBER),
    lambda box: box.run_code("1", context=NUMBER),
    lambda box: box.run_code("1", timeout=-1),
    lambda box: box.run_code("1", envs={"a=b": "1"}),
    lambda box: box.run_code("1", envs={"a": "\0"}),
    lambda box: box.set_timeout(-1),
    lambda box: box.set_timeout(1e18),
    lambda box: box.stop(math.inf),
    lambda box: box.rename(NUMBER),
    lambda box: box.rename(LONE),
    lambda box: box.fork(-1),
    lambda box: box.fork(0),
    lambda box: box.fork(TEXT),
    lambda box: box.commit(LONE),
    lambda box: box.create_snapshot(NUMBER),
]


class ArgumentsTest(SandboxTest):
    def _refuses(self, attempt: Callable[[], Any]) -> None:
        with self.assertRaises(InvalidArgumentException) as raised:
            attempt()
        self.assertEqual(raised.exception.kind, "invalid")

    def test_a_sandbox_goes_on_after_what_it_can_not_be_asked(self) -> None:
        terminal = self.box.pty.create(PtySize(24, 80))
        for number, attempt in enumerate(REQUESTS):
            with self.subTest(number):
                self._refuses(lambda attempt=attempt: attempt(self.box))
        self._refuses(lambda: self.box.pty.resize(terminal.pid, PtySize(-1, 5)))
        self.assertEqual(self.box.commands.run("echo on").stdout, "on\n")
        self.assertTrue(terminal.kill())

    def test_wrong_options_leave_mica_serve_as_it_is(self) -> None:
        for options in OPTIONS:
            with self.subTest(str(options)):
                self._refuses(lambda options=options: _create(**options))
        attempts: list[Callable[[], Any]] = [
            lambda: Sandbox.create(NUMBER),
            lambda: Sandbox.connect(NUMBER),
            lambda: Sandbox.list(metadata={"a": "\0"}),
            lambda: Sandbox.list(metadata={"a=b": "c"}),
            lambda: volumes.create(LONE),
            lambda: volumes.create("x", NUMBER),
            lambda: images.tag(IMAGE, BYTES),
        ]
        for number, attempt in enumerate(attempts):
            with self.subTest(number):
                self._refuses(attempt)
        self.assertTrue(self.box.is_running())

    def test_numbers_are_values_of_variables(self) -> None:
        port: Any = 8080
        with _create(envs={"A": port}, metadata={"job": port}) as box:
            self.assertEqual(box.get_info().metadata, {"job": "8080"})
            said = box.commands.run("echo $A $PORT", envs={"PORT": port})
            self.assertEqual(said.stdout, "8080 8080\n")
            self.assertEqual(
                box.run_code("__import__('os').environ['N']", envs={"N": port}).text, "'8080'"
            )

    def test_a_variable_may_have_bytes_that_are_not_utf_8(self) -> None:
        done = self.box.commands.capture(["env"], envs={f"odd{LONE}": LONE})
        self.assertIn(b"odd\xff=\xff\n", done.stdout)


class AsyncArgumentsTest(AsyncSandboxTest):
    async def test_a_sandbox_goes_on_after_what_it_can_not_be_asked(self) -> None:
        for number, attempt in enumerate(REQUESTS):
            with self.subTest(number), self.assertRaises(InvalidArgumentException):
                await attempt(self.box)
        with self.assertRaises(InvalidArgumentException):
            await AsyncSandbox.create(IMAGE, backend="host", cpus=math.nan)
        result = await self.box.commands.run("echo on")
        self.assertIsInstance(result, CommandResult)


class MessageTest(unittest.TestCase):
    def test_what_json_can_not_carry_is_not_sent(self) -> None:
        for value in (LONE, math.nan, math.inf, b"x", object()):
            with self.assertRaises(InvalidArgumentException):
                encode(1, {"value": value})
        self.assertIn("ö".encode(), encode(1, {"value": "ö"}))
