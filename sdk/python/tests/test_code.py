"""Code that runs in a sandbox and keeps its state."""

import asyncio
import json
import struct
import subprocess
import sys
import threading
import unittest
from collections.abc import Generator
from contextlib import contextmanager
from importlib import resources
from typing import Any
from unittest.mock import Mock, patch

from micabox import CommandStartException, GuestException, TimeoutException
from micabox.code import ExecutionError, OutputMessage, Result, contexts
from micabox.core.process import Process
from micabox.protocol.replies import ReplyDecoder

from .support import AsyncSandboxTest, SandboxTest
from .waiting import PATIENCE

DRIVER = resources.files("micabox.code").joinpath("driver.py").read_text()


@contextmanager
def late_driver() -> Generator[None]:
    """Interpreters that are made meanwhile read no code while there is a file `/late`."""
    reads = "        request = json.loads("
    waits = "        while os.path.exists('/late'):\n            select.select([], [], [], 0.01)\n"
    source = Mock()
    source.files().joinpath().read_text.return_value = DRIVER.replace(reads, waits + reads)
    with patch.object(contexts, "resources", source):
        yield


class CodeTest(SandboxTest):
    def test_state_is_kept_between_calls(self) -> None:
        self.assertIsNone(self.box.run_code("import math\nx = 20").text)
        execution = self.box.run_code("x += 1\nmath.floor(x * 2.0)")
        self.assertEqual(execution.text, "42")
        self.assertEqual(self.box.run_code("_").text, "42")
        self.assertIsNone(self.box.run_code("x", context="other").text)
        self.box.restart_code_context()
        failed = self.box.run_code("x")
        self.assertEqual(failed.error and failed.error.name, "NameError")
        self.assertEqual(failed.execution_count, 1)

    def test_output_of_code_and_its_children_is_told(self) -> None:
        told: list[OutputMessage] = []
        execution = self.box.run_code(
            "import os, sys\nprint('out')\nsys.stderr.write('err')\nos.system('echo child')\nNone",
            on_stdout=told.append,
            on_stderr=told.append,
        )
        self.assertEqual("".join(execution.logs.stdout), "out\nchild\n")
        self.assertEqual(execution.logs.stderr, ["err"])
        self.assertEqual({(one.line, one.error) for one in told if one.error}, {("err", True)})
        self.assertEqual(execution.results, [])
        big = self.box.run_code("print('ä' * 3_000_000, end='')")
        self.assertEqual("".join(big.logs.stdout), "ä" * 3_000_000)

    def test_an_exception_has_a_traceback_of_the_code_alone(self) -> None:
        errors: list[ExecutionError] = []
        execution = self.box.run_code("def f():\n    return 1 / 0\nf()", on_error=errors.append)
        assert execution.error is not None
        self.assertEqual(errors, [execution.error])
        self.assertEqual(
            (execution.error.name, execution.error.value), ("ZeroDivisionError", "division by zero")
        )
        self.assertIn("return 1 / 0", execution.error.traceback)
        self.assertNotIn("<string>", execution.error.traceback)
        for code, name in (
            ("1 +", "SyntaxError"),
            ("exit()", "SystemExit"),
            ("input()", "EOFError"),
        ):
            failed = self.box.run_code(code)
            self.assertEqual(failed.error and failed.error.name, name)

    def test_results_have_the_formats_of_their_class(self) -> None:
        results: list[Result] = []
        self.box.run_code(
            "class Plot:\n"
            "  def __repr__(self): return 'a plot'\n"
            "  def _repr_html_(self): return '<p>'\n"
            "  def _repr_png_(self): return b'png'\n"
            "Plot()",
            on_result=results.append,
        )
        self.assertEqual(results, [Result(text="a plot", html="<p>", png="cG5n")])
        self.assertEqual(set(results[0].formats()), {"text", "html", "png"})

    def test_await_works_outside_of_functions(self) -> None:
        execution = self.box.run_code("import asyncio\nawait asyncio.sleep(0.01, 'slept')")
        self.assertEqual(execution.text, "'slept'")

    def test_variables_are_set_for_code(self) -> None:
        execution = self.box.run_code("import os\nos.environ['A']", envs={"A": "b"})
        self.assertEqual(execution.text, "'b'")

    def test_variables_are_those_of_one_call(self) -> None:
        self.box.run_code("import os; os.environ['KEPT'] = '1'; os.environ['BOTH'] = 'own'")
        self.box.run_code("os.environ['NEW'] = '1'", envs={"ONCE": "1", "BOTH": "given"})
        said = self.box.run_code("[os.environ.get(n) for n in ('KEPT', 'NEW', 'ONCE', 'BOTH')]")
        self.assertEqual(said.text, "['1', '1', None, 'own']")

    def test_code_may_close_and_redirect_its_outputs(self) -> None:
        closing = "import os; os.close(1); os.close(2)"
        redirecting = (
            "import os, sys; print('before'); sys.stdout.flush()\n"
            "null = os.open('/dev/null', os.O_WRONLY); os.dup2(null, 1); os.dup2(null, 2)\n"
            "print('unheard'); os.system('echo unheard')\n'done'"
        )
        self.assertIsNone(self.box.run_code(closing, context="closing", timeout=PATIENCE).error)
        self.assertEqual(self.box.run_code("1 + 1", context="closing", timeout=PATIENCE).text, "2")
        done = self.box.run_code(redirecting, context="redirecting", timeout=PATIENCE)
        self.assertEqual((done.text, "".join(done.logs.stdout)), ("'done'", "before\n"))
        with self.assertRaises(GuestException):
            self.box.run_code("os.closerange(0, 99)", context="redirecting", timeout=PATIENCE)

    def test_an_interpreter_that_had_to_be_killed_is_made_anew(self) -> None:
        deaf = "import signal, time; signal.signal(signal.SIGINT, lambda *_: None)\ntime.sleep(60)"
        with patch.object(contexts, "_GRACE", 0.3), self.assertRaises(TimeoutException):
            self.box.run_code(deaf, context="deaf", timeout=0.2)
        self.assertEqual(self.box.run_code("1 + 1", context="deaf").text, "2")

    def test_code_that_takes_too_long_is_interrupted_and_state_stays(self) -> None:
        self.box.run_code("kept = 1")
        with patch.object(contexts, "_GRACE", PATIENCE), self.assertRaises(TimeoutException):
            self.box.run_code("while True: pass", timeout=0.3)
        self.assertEqual(self.box.run_code("kept").text, "1")

    def test_code_that_is_read_after_its_time_is_interrupted_and_state_stays(self) -> None:
        interrupt = contexts.Interpreter._interrupt  # pyright: ignore[reportPrivateUsage]

        async def interrupted(interpreter: contexts.Interpreter) -> None:
            await interrupt(interpreter)
            if self.box.files.exists("/late"):
                self.box.files.remove("/late")

        with late_driver():
            self.box.run_code("kept = 1", context="late")
        self.box.files.write("/late", "")
        with (
            patch.object(contexts, "_GRACE", PATIENCE),
            patch.object(contexts.Interpreter, "_interrupt", interrupted),
            self.assertRaises(TimeoutException),
        ):
            self.box.run_code("while True: pass", context="late", timeout=0.1)
        self.assertEqual(self.box.run_code("kept", context="late").text, "1")

    def test_code_that_cleans_up_is_interrupted_once(self) -> None:
        code = "import time\ntry: time.sleep(1000)\nfinally: time.sleep(0.5); cleaned = 1"
        with patch.object(contexts, "_GRACE", PATIENCE), self.assertRaises(TimeoutException):
            self.box.run_code(code, context="cleaning", timeout=0.3)
        self.assertEqual(self.box.run_code("cleaned", context="cleaning").text, "1")

    def test_contexts_run_at_the_same_time(self) -> None:
        def wait() -> None:
            self.box.run_code("import os, time\nwhile not os.path.exists('/go'): time.sleep(0.01)")

        thread = threading.Thread(target=wait)
        thread.start()
        self.box.run_code("open('/go', 'w').close()", context="second")
        thread.join(PATIENCE)
        self.assertFalse(thread.is_alive())

    def test_values_that_cannot_be_shown_are_errors_of_the_code(self) -> None:
        code = (
            "class Bad(Exception):\n"
            "  def __repr__(self): raise Bad\n"
            "  def __str__(self): raise KeyError\n"
        )
        for last in ("Bad()", "raise Bad"):
            failed = self.box.run_code(f"{code}{last}")
            assert failed.error is not None
            self.assertEqual(failed.error.name, "Bad")
            self.assertIn("KeyError", failed.error.value)

    def test_a_child_that_code_forks_is_not_a_second_interpreter(self) -> None:
        execution = self.box.run_code(
            "import os\nif os.fork() == 0:\n    print('child')\nelse:\n    os.wait()\n"
        )
        self.assertEqual("".join(execution.logs.stdout), "child\n")
        self.assertEqual(self.box.run_code("'one'").text, "'one'")

    def test_an_interpreter_that_has_ended_is_made_anew(self) -> None:
        with self.assertRaises(GuestException):
            self.box.run_code("import os; os._exit(3)")
        self.assertEqual(self.box.run_code("1 + 1").text, "2")

    def test_code_needs_python(self) -> None:
        self.box.commands.run("mv /usr/bin/python3 /usr/bin/not-python3")
        try:
            with self.assertRaises(CommandStartException):
                self.box.run_code("1", context="without")
        finally:
            self.box.commands.run("mv /usr/bin/not-python3 /usr/bin/python3")


class AsyncCodeTest(AsyncSandboxTest):
    async def test_code_that_is_read_after_it_was_given_up_is_interrupted(self) -> None:
        written = asyncio.Event()
        write = Process.write

        async def noted(process: Process, data: bytes) -> bool:
            done = await write(process, data)
            written.set()
            return done

        with late_driver():
            await self.box.run_code("kept = 1")
        await self.box.files.write("/late", "")
        with patch.object(Process, "write", noted):
            running = asyncio.create_task(self.box.run_code("while True: pass"))
            await written.wait()
        running.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await running
        await self.box.files.remove("/late")
        execution = await asyncio.wait_for(self.box.run_code("kept"), PATIENCE)
        self.assertEqual(execution.text, "1")


class DriverTest(unittest.TestCase):
    def test_a_request_that_is_no_code_is_answered(self) -> None:
        requests: list[dict[str, Any]] = [
            {"request": 1, "code": 5, "envs": {}},
            {"request": 2, "code": "1", "envs": {"N": 1}},
            {"request": 3, "code": "1", "envs": {"a=b": "1"}},
            {"request": 4, "code": "1", "envs": {"a": "\0"}},
            {"request": 5, "code": "1", "envs": ["a"]},
            {"request": 6, "code": "1", "envs": {}},
        ]
        bodies = [json.dumps(one).encode() for one in requests]
        done = subprocess.run(
            [sys.executable, "-c", DRIVER],
            input=b"".join(struct.pack("<I", len(body)) + body for body in bodies),
            stdout=subprocess.PIPE,
            timeout=PATIENCE,
            check=True,
        )
        said = [(one["request"], one["type"]) for one in ReplyDecoder().feed(done.stdout)]
        expected = [(n, kind) for n in range(1, 6) for kind in ("error", "end")]
        self.assertEqual(said, [(0, "ready"), *expected, (6, "result"), (6, "end")])
