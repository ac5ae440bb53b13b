"""The process that a client is: its end, its children, its threads, and the end of its `mica serve`."""

import gc
import os
import signal
import threading
import time
import unittest
from typing import Any, cast

from micabox import (
    DisconnectedException,
    Sandbox,
    SandboxException,
    SandboxNotRunningException,
    server,
)

from .support import make, mica, python
from .waiting import PATIENCE, wait_until

MAKE = """
import os, sys, time
from micabox import Sandbox
from tests.waiting import wait_until
box = Sandbox.create("sample", backend="host", user="root", workdir="/")
print(box.sandbox_id, flush=True)
"""


def runs(sandbox_id: str) -> bool:
    return sandbox_id in mica("ps", "--quiet", "--no-trunc")


# With all that can be open, and a thread that waits.
OPEN = (
    MAKE
    + """
import signal, threading
from micabox import PtySize, SandboxException, server
handle = box.commands.run("sleep 1061", background=True, stdin=True)
watch = box.files.watch_dir("/tmp", recursive=True)
stream = box.files.read("/dev/zero", "stream")
next(stream)
terminal = box.pty.create(PtySize(24, 80))
box.run_code("1")
def wait():
    try:
        handle.wait()
    except SandboxException:
        pass
threading.Thread(target=wait, daemon=True).start()
"""
)

OPEN_ASYNC = """
import asyncio, os, signal, sys
from micabox import AsyncSandbox, PtySize
async def main():
    box = await AsyncSandbox.create("sample", backend="host", user="root", workdir="/")
    print(box.sandbox_id, flush=True)
    handle = await box.commands.run("sleep 1061", background=True, on_stdout=print)
    watch = await box.files.watch_dir("/tmp", print)
    stream = await box.files.read("/dev/zero", "stream")
    await anext(stream)
    terminal = await box.pty.create(PtySize(24, 80))
    await box.run_code("1")
    waiting = asyncio.create_task(handle.wait())
    # Sleep: the turn in which it begins.
    await asyncio.sleep(0)
    {ending}
asyncio.run(main())
"""

# How a program ends, and its exit code.
ENDINGS = [
    ("pass", 0),
    ("sys.exit(3)", 3),
    ("raise RuntimeError('the end')", 1),
    ("os._exit(4)", 4),
    ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
]


class ProcessTest(unittest.TestCase):
    def test_sandboxes_end_with_their_process(self) -> None:
        endings = [
            "",
            "box.commands.run('sleep 1060', background=True)",
            "box.run_code('1'); box.commands.list(); sys.exit(0)",
        ]
        for ending in endings:
            done = python(MAKE + ending)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertFalse(runs(done.stdout.strip()))

    def test_sandboxes_end_with_a_process_that_is_killed(self) -> None:
        done = python(MAKE + "os.kill(os.getpid(), 9)")
        self.assertEqual(done.returncode, -signal.SIGKILL)
        wait_until(lambda: not runs(done.stdout.strip()))

    def _ends(self, program: str, code: int) -> None:
        done = python(program)
        self.assertEqual(done.returncode, code, done.stderr)
        # asyncio itself warns of what a program leaves open when its loop ends.
        if "asyncio" not in program:
            self.assertEqual("Traceback" in done.stderr, "the end" in program, done.stderr)
        wait_until(lambda: not runs(done.stdout.strip()))

    def test_a_program_ends_at_once_whatever_is_open(self) -> None:
        endings = [
            *ENDINGS,
            ("threading.Thread(target=sys.exit, args=(3,)).start()", 0),
            ("os.kill(server.running().pid, signal.SIGKILL)", 0),
            # One that does not answer any more.
            ("server._GRACE = 0.5; os.kill(server.running().pid, signal.SIGSTOP)", 0),
        ]
        for ending, code in endings:
            with self.subTest(ending):
                self._ends(OPEN + ending, code)

    def test_a_program_of_asyncio_ends_at_once_whatever_is_open(self) -> None:
        for ending, code in ENDINGS:
            with self.subTest(ending):
                self._ends(OPEN_ASYNC.format(ending=ending), code)

    def test_sandboxes_leave_no_zombies_to_a_program_that_reaps_none(self) -> None:
        # As the first process of a container does, it adopts what others leave behind.
        done = python(
            """
import ctypes, pathlib
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
"""
            + MAKE
            + """
box.commands.run("sleep 1060", background=True)
box.kill()
with Sandbox.create("sample", backend="host", user="root") as another:
    another.commands.run("sleep 1060 & true")
children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children")
wait_until(lambda: len(children.read_text().split()) == 1)  # what is left is mica serve
"""
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_detached_one_does_not(self) -> None:
        done = python(MAKE + "box.detach()")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(Sandbox.connect(done.stdout.strip()).kill())

    def test_a_forked_child_has_sandboxes_of_its_own_and_uses_its_parent_s(self) -> None:
        done = python(
            MAKE
            + """
handle = box.commands.run("cat", background=True, stdin=True)
child = os.fork()
if child == 0:
    with box:
        box.files.write("/from-child", "1")
    with Sandbox.create("sample", backend="host") as own:
        own.commands.run("true")
        print(own.sandbox_id, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert box.is_running()
assert box.files.read("/from-child") == "1"
handle.send_stdin("still here")
handle.close_stdin()
assert handle.wait().stdout == "still here"
"""
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for sandbox_id in done.stdout.split():
            self.assertFalse(runs(sandbox_id))

    def test_a_child_is_forked_when_a_connection_was_closed(self) -> None:
        done = python(
            MAKE
            + """
closed = box.files.read("/dev/zero", "stream")
closed.close()
child = os.fork()
if child == 0:
    print(box.commands.run("echo from the child").stdout, end="", flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
        )
        self.assertEqual((done.stdout.splitlines()[1:], done.stderr), (["from the child"], ""))

    def test_a_child_that_lives_longer_does_not_keep_sandboxes(self) -> None:
        done = python(
            MAKE
            + """
box.commands.run("sleep 1060", background=True)
if os.fork() == 0:
    os.close(1)
    os.close(2)
    # Sleep: the child lives longer than the program.
    time.sleep(5)
    os._exit(0)
"""
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertFalse(runs(done.stdout.strip()))

    def test_workers_of_multiprocessing_each_have_sandboxes(self) -> None:
        for method in ("fork", "spawn"):
            done = python(
                f"""
                import multiprocessing, sys, os
                program = os.path.join({os.path.dirname(__file__)!r}, "worker.py")
                sys.path.insert(0, os.path.dirname(program))
                import worker
                with multiprocessing.get_context({method!r}).Pool(3) as pool:
                    print(*pool.map(worker.work, range(6)))
                """
            )
            self.assertEqual(done.stdout.split(), [str(n) for n in range(6)], done.stderr)

    def test_threads_share_a_sandbox(self) -> None:
        results: list[str] = []
        with make() as box:

            def work(number: int) -> None:
                for turn in range(5):
                    box.files.write(f"/thread-{number}", f"{number} {turn}")
                    said = box.commands.run(f"cat /thread-{number}").stdout
                    assert said == f"{number} {turn}", said
                results.append("done")

            threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(results, ["done"] * 8)

    def test_a_handle_is_used_by_several_threads(self) -> None:
        with make() as box:
            handle = box.commands.run("cat", background=True, stdin=True)
            waited: list[str] = []
            waiter = threading.Thread(target=lambda: waited.append(handle.wait().stdout))
            waiter.start()
            for _ in range(20):
                handle.send_stdin("x" * 100_000)
            handle.close_stdin()
            waiter.join(PATIENCE)
            self.assertEqual([len(text) for text in waited], [2_000_000])

    def test_a_request_fails_when_mica_serve_is_killed_and_the_next_makes_another(self) -> None:
        box = make()
        handle = box.commands.run("sleep 1060", background=True)
        os.kill(server.running().pid, signal.SIGKILL)
        with self.assertRaises(SandboxNotRunningException):
            handle.wait()
        wait_until(lambda: not box.is_running())
        with make() as another:
            self.assertEqual(another.commands.run("echo again").stdout, "again\n")

    def test_a_mica_serve_that_has_died_is_asked_nothing_though_no_thread_has_noticed(self) -> None:
        helper = server.running()
        with cast("Any", helper)._lock:  # which the thread needs to say so
            os.kill(helper.pid, signal.SIGKILL)
            os.waitid(os.P_PID, helper.pid, os.WEXITED | os.WNOWAIT)
            self.assertEqual((helper.is_over, helper.has_died), (False, True))
        with make() as box:
            self.assertEqual(box.commands.run("echo up").stdout, "up\n")
            self.assertNotEqual(server.running().pid, helper.pid)

    def test_an_owner_that_is_killed_ends_what_waits(self) -> None:
        with make() as box:
            handle = box.commands.run("sleep 1000", background=True)
            begun = time.monotonic()
            os.kill(box.get_info().record["owner"]["pid"], signal.SIGKILL)
            with self.assertRaises(DisconnectedException):
                handle.wait()
            self.assertLess(time.monotonic() - begun, PATIENCE)
            self.assertFalse(box.is_running())

    def test_no_descriptor_is_left_open(self) -> None:
        def use() -> int:
            with make() as box:
                box.commands.run("true")
                box.commands.run("sleep 1060", background=True)
                box.run_code("1")
                box.files.watch_dir("/tmp")
                with self.assertRaises(SandboxException):
                    box.commands.run("exit 1")
                with self.assertRaises(SandboxException):
                    box.commands.run("true", user="nonesuch")
                with self.assertRaises(SandboxException):
                    box.files.read("/nonesuch")
                with self.assertRaises(SandboxException):
                    box.diff()
                next(box.files.read("/dev/zero", "stream"))
            del box
            gc.collect()
            return len(os.listdir("/proc/self/fd"))

        self.assertEqual(use(), use())

    def test_a_program_that_is_missing_is_named(self) -> None:
        done = python(
            """
            import os
            from micabox import Sandbox, SandboxException
            for name in ("nonesuch", "/bin/false", "/bin/echo"):
                os.environ["MICABOX_MICA"] = name
                try:
                    Sandbox.create("sample")
                except SandboxException as failure:
                    print(failure.message)
            """
        )
        expected = [
            "cannot find `nonesuch`",
            "`/bin/false serve` ended at once",
            "the other side does not speak version 2 of the protocol",
        ]
        self.assertEqual((done.stdout.splitlines(), done.stderr), (expected, ""))

    def test_ctrl_c_ends_a_command_and_not_its_sandbox(self) -> None:
        done = python(
            MAKE
            + """
import signal, threading
def interrupt():
    wait_until(lambda: box.files.exists("/begun"))
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    box.commands.run("echo begun >/begun; exec sleep 1061")
except KeyboardInterrupt:
    assert box.files.exists("/begun")
    wait_until(lambda: "sleep 1061" not in [process.cmd for process in box.commands.list()])
    print("interrupted")
"""
        )
        self.assertEqual((done.stdout.splitlines()[1:], done.stderr), (["interrupted"], ""))
