"""Commands in a sandbox."""

import contextlib
import gc
import time
from functools import partial

from micabox import (
    CommandExitException,
    CommandStartException,
    InUseException,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    SandboxException,
    TimeoutException,
)

from .support import IMAGE, SandboxTest
from .waiting import PATIENCE, wait_until

BIG = bytes(range(256)) * 20_000


class CommandsTest(SandboxTest):
    def test_a_command_has_its_streams_and_exit_code(self) -> None:
        result = self.box.commands.run("echo out; echo err >&2")
        self.assertEqual((result.stdout, result.stderr, result.exit_code), ("out\n", "err\n", 0))
        self.assertIsNone(result.error)
        with self.assertRaises(CommandExitException) as raised:
            self.box.commands.run("echo out; echo why >&2; exit 3")
        failure = raised.exception
        self.assertEqual((failure.exit_code, failure.stdout, failure.stderr), (3, "out\n", "why\n"))
        self.assertIn("why", str(failure))
        with self.assertRaises(CommandExitException) as raised:
            self.box.commands.run("kill -TERM $$")
        self.assertEqual(raised.exception.exit_code, 128 + 15)
        self.assertEqual(raised.exception.error, "signal 15 ended it")

    def test_output_comes_in_pieces_as_it_is_written(self) -> None:
        seen: list[str] = []

        def see(text: str) -> None:
            seen.append(text)
            if text == "one\n":
                self.box.files.write("/seen", "")

        self.box.commands.run(
            "echo one; while [ ! -e /seen ]; do sleep 0.02; done; echo two; echo three >&2",
            on_stdout=see,
            on_stderr=see,
        )
        self.assertEqual(seen[0], "one\n")
        self.assertEqual(sorted(seen[1:]), ["three\n", "two\n"])

    def test_a_character_that_comes_in_two_pieces_is_one(self) -> None:
        result = self.box.commands.run(r"printf '\303'; sleep 0.05; printf '\244\377'")
        self.assertEqual(result.stdout, "ä�")

    def test_variables_user_and_directory_can_be_set(self) -> None:
        self.box.files.make_dir("/srv/new")
        result = self.box.commands.run(
            'echo "$A $LANG"; pwd; id -un', envs={"A": "ö b"}, cwd="/srv/new", user="strata"
        )
        self.assertEqual(result.stdout, "ö b C.UTF-8\n/srv/new\nstrata\n")
        self.assertEqual(self.box.commands.run("pwd", cwd="tmp").stdout, "/tmp\n")

    def test_a_program_gets_its_arguments_as_they_are(self) -> None:
        result = self.box.commands.run(["printf", "%s|", "a b", "$HOME", "*"])
        self.assertEqual(result.stdout, "a b|$HOME|*|")

    def test_a_program_that_is_missing_says_so(self) -> None:
        with self.assertRaises(CommandStartException) as raised:
            self.box.commands.run(["nonesuch"])
        self.assertEqual((raised.exception.reason, raised.exception.errno), ("not_found", 2))
        with self.assertRaises(CommandStartException) as raised:
            self.box.commands.run("true", user="nonesuch")
        self.assertEqual(raised.exception.reason, "no_such_user")
        with self.assertRaises(SandboxException) as refused:
            self.box.commands.run(["true", *["x" * 100_000] * 70])
        self.assertEqual(refused.exception.kind, "too_long")
        with self.assertRaises(SandboxException):
            self.box.commands.run(["true", "x" * 9_000_000])

    def test_a_timeout_ends_a_command_also_one_that_ignores_the_signal(self) -> None:
        for command in ("exec sleep 1000", "trap '' TERM; while :; do sleep 0.1; done"):
            begun = time.monotonic()
            with self.assertRaises(TimeoutException) as raised:
                self.box.commands.run(command, timeout=0.2)
            self.assertEqual(raised.exception.kind, "timed_out")
            self.assertLess(time.monotonic() - begun, PATIENCE)
        self.assertEqual(self.box.commands.run("sleep 0.1", timeout=0).exit_code, 0)

    def test_a_command_in_the_background_has_a_handle(self) -> None:
        handle = self.box.commands.run("echo a; echo b >&2; exec sleep 60", background=True)
        pieces = iter(handle)
        self.assertEqual({next(pieces), next(pieces)}, {("a\n", None, None), (None, "b\n", None)})
        self.assertIn(handle.pid, [process.pid for process in self.box.commands.list()])
        self.assertIsNone(handle.exit_code)
        self.assertTrue(handle.kill())
        with self.assertRaises(CommandExitException):
            handle.wait()
        self.assertEqual((handle.exit_code, handle.stdout, handle.stderr), (137, "a\n", "b\n"))
        self.assertEqual(handle.error, "signal 9 ended it")
        self.assertFalse(handle.kill())

    def test_stdin_of_any_size_passes_a_command_that_writes_while_it_reads(self) -> None:
        handle = self.box.commands.run("cat; echo; echo end", background=True, stdin=True)
        handle.send_stdin(BIG.hex())
        self.box.commands.send_stdin(handle.pid, b"more")
        self.box.commands.close_stdin(handle.pid)
        self.assertEqual(handle.wait().stdout, BIG.hex() + "more\nend\n")

    def test_a_command_without_stdin_takes_none(self) -> None:
        handle = self.box.commands.run("exec sleep 60", background=True)
        with self.assertRaisesRegex(InvalidArgumentException, "stdin=True"):
            handle.send_stdin("x" * 1_000_000)
        with self.assertRaises(InvalidArgumentException):
            handle.close_stdin()
        handle.kill()
        handle = self.box.commands.run("cat", background=True, stdin=True)
        handle.close_stdin()
        with self.assertRaisesRegex(InvalidArgumentException, "closed"):
            handle.send_stdin("lost")

    def test_stdin_is_written_in_pieces(self) -> None:
        handle = self.box.commands.run("cat", background=True, stdin=True)
        self.box.commands.stream_input(handle.pid, (text for text in ("one ", "two\n")))
        with self.assertRaises(InvalidArgumentException):
            self.box.commands.stream_input(handle.pid, "one")
        handle.close_stdin()
        self.assertEqual(handle.wait().stdout, "one two\n")

    def test_a_command_that_has_ended_is_neither_killed_nor_written_to(self) -> None:
        # With more output than is received at once.
        handle = self.box.commands.run("head -c 900000 /dev/zero", background=True, stdin=True)
        wait_until(lambda: handle.pid not in [one.pid for one in self.box.commands.list()])
        # Once its end is here.
        wait_until(lambda: not handle.kill())
        for send in (handle.send_stdin, partial(self.box.commands.send_stdin, handle.pid)):
            with self.assertRaises(NotFoundException):
                send("x")
        self.assertEqual(len(handle.wait().stdout), 900_000)

    def test_a_handle_has_the_exit_code_after_the_last_output(self) -> None:
        handle = self.box.commands.run("echo a; exit 3", background=True)
        self.assertEqual([out for out, _, _ in handle], ["a\n"])
        self.assertEqual(handle.exit_code, 3)
        handle = self.box.commands.run("echo a; exit 4", background=True)
        self.assertEqual((list(handle.raw()), handle.exit_code), ([(1, b"a\n")], 4))

    def test_raw_output_has_the_numbers_of_its_descriptors(self) -> None:
        handle = self.box.commands.run("echo out; echo err >&2", background=True)
        self.assertEqual(set(handle.raw()), {(1, b"out\n"), (2, b"err\n")})
        done = self.box.commands.capture("echo out; echo err >&2")
        self.assertEqual(set(done.pieces), {(1, b"out\n"), (2, b"err\n")})
        self.assertEqual((done.stdout, done.stderr), (b"out\n", b"err\n"))

    def test_a_second_handle_here_leaves_the_stdin_with_the_first(self) -> None:
        handle = self.box.commands.run("cat", background=True, stdin=True)
        second = self.box.commands.connect(handle.pid)
        self.box.commands.send_stdin(handle.pid, "typed")
        self.assertEqual(next(iter(second)), ("typed", None, None))
        handle.kill()

    def test_stdin_ends_at_once_when_nothing_reads_it(self) -> None:
        handle = self.box.commands.run("exec <&-; sleep 60", background=True, stdin=True)
        handle.send_stdin(BIG)
        handle.kill()

    def test_a_command_that_is_left_alone_continues(self) -> None:
        wait = "while [ ! -e /go ]; do sleep 0.02; done; touch"
        handle = self.box.commands.run(f"{wait} /left", background=True)
        handle.disconnect()
        dropped = self.box.commands.run(f"{wait} /dropped", background=True).pid
        gc.collect()
        # Sleep: nothing may happen meanwhile.
        time.sleep(0.2)
        self.box.files.write("/go", "")
        wait_until(lambda: self.box.files.exists("/left") and self.box.files.exists("/dropped"))
        with self.assertRaises(NotFoundException):
            self.box.commands.send_stdin(dropped, "x")

    def test_another_client_connects_to_a_command(self) -> None:
        handle = self.box.commands.run(
            "echo before; read a; echo $a; read b; echo $b; exit 5", background=True, stdin=True
        )
        # Before there is another client: each gets what is written from then on.
        self.assertEqual(next(iter(handle)), ("before\n", None, None))
        other = Sandbox.connect(self.box.sandbox_id)
        # The first handle has the stdin.
        watching = other.commands.connect(handle.pid)
        with self.assertRaises(InUseException):
            watching.send_stdin("x")
        handle.send_stdin("one\n")
        self.assertEqual(next(iter(watching)), ("one\n", None, None))
        handle.disconnect()
        watching.disconnect()
        wait_until(lambda: _types(other, handle.pid, "two\n"))
        with self.assertRaises(NotFoundException):
            other.commands.connect(handle.pid)

    def test_a_command_is_ended_with_what_it_has_started(self) -> None:
        def sleeping() -> list[str]:
            return [one.cmd for one in self.box.commands.list() if one.cmd == "sleep 987"]

        with self.assertRaises(TimeoutException):
            self.box.commands.run("sleep 987; echo never", timeout=0.3)
        wait_until(lambda: not sleeping())
        handle = self.box.commands.run("sleep 987; echo never", background=True)
        wait_until(lambda: sleeping() == ["sleep 987"])
        handle.kill()
        wait_until(lambda: not sleeping())
        pid = self.box.commands.run("sleep 987; echo never", background=True).pid
        gc.collect()
        wait_until(lambda: sleeping() == ["sleep 987"])
        self.assertTrue(self.box.commands.kill(pid))
        wait_until(lambda: not sleeping())

    def test_any_process_can_be_killed_by_its_pid(self) -> None:
        pid = self.box.commands.run(["sleep", "60"], background=True).pid
        gc.collect()
        (process,) = [one for one in self.box.commands.list() if one.pid == pid]
        self.assertEqual((process.cmd, process.uid), ("sleep 60", 0))
        self.assertGreater(process.memory, 0)
        self.assertTrue(self.box.commands.kill(pid))
        wait_until(lambda: pid not in [one.pid for one in self.box.commands.list()])
        self.assertFalse(self.box.commands.kill(pid))

    def test_commands_have_the_confinement_of_their_sandbox(self) -> None:
        with Sandbox.create(
            IMAGE,
            backend="host",
            user="root",
            cap_drop=["ALL"],
            ulimit=["nofile=123"],
            group_add=["77"],
            envs={"B": "c"},
        ) as box:
            said = box.commands.run("grep CapEff /proc/self/status; ulimit -n; id -G; echo $B")
        self.assertEqual(said.stdout, "CapEff:\t0000000000000000\n123\n0 77\nc\n")


def _types(box: Sandbox, pid: int, line: str) -> bool:
    """Connects to a command and types its last line, if its other client has left it."""
    handle = box.commands.connect(pid)
    try:
        handle.send_stdin(line)
    except InUseException:
        handle.disconnect()
        return False
    with contextlib.suppress(CommandExitException):
        handle.wait()
    return handle.stdout == line and handle.exit_code == 5
