"""Code that runs in a sandbox and keeps its state."""

import threading

from micabox import CommandStartException, GuestException, TimeoutException
from micabox.code import ExecutionError, OutputMessage, Result

from .support import SandboxTest


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

    def test_code_that_takes_too_long_is_interrupted_and_state_stays(self) -> None:
        self.box.run_code("kept = 1")
        with self.assertRaises(TimeoutException):
            self.box.run_code("while True: pass", timeout=0.3)
        self.assertEqual(self.box.run_code("kept").text, "1")

    def test_contexts_run_at_the_same_time(self) -> None:
        def wait() -> None:
            self.box.run_code("import os, time\nwhile not os.path.exists('/go'): time.sleep(0.01)")

        thread = threading.Thread(target=wait)
        thread.start()
        self.box.run_code("open('/go', 'w').close()", context="second")
        thread.join(10)
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
