"""Commands whose output is kept as bytes, and directories as archives."""

import io
import tarfile
import time

from .support import AsyncSandboxTest, SandboxTest
from .waiting import PATIENCE, limits, until, wait_until


class CaptureTest(SandboxTest):
    def test_output_is_kept_as_bytes_within_its_limit(self) -> None:
        done = self.box.commands.capture("printf '\\377'; echo e >&2; exit 3")
        self.assertEqual((done.stdout, done.stderr, done.exit_code), (b"\xff", b"e\n", 3))
        done = self.box.commands.capture("yes | head -c 3000000", limit=10)
        self.assertEqual((done.output, done.exit_code, done.truncated), (b"y\n" * 5, 0, True))

    def test_a_command_ends_with_its_processes_after_its_time(self) -> None:
        for timeout in limits(0.5):
            cmd = "echo begun; sleep 7777 & sleep 7878"
            done = self.box.commands.capture(cmd, timeout=timeout)
            self.assertIsNone(done.exit_code)
            if done.stdout:
                self.assertEqual(done.stdout, b"begun\n")
                break
        wait_until(lambda: not any("sleep 7" in one.cmd for one in self.box.commands.list()))

    def test_the_time_counts_while_a_command_does_not_read_its_input(self) -> None:
        begun = time.monotonic()
        cmd = "echo begun; exec sleep 7979"
        for timeout in limits(0.5):
            done = self.box.commands.capture(cmd, input=b"x" * 1_000_000, timeout=timeout)
            self.assertIsNone(done.exit_code)
            if done.stdout:
                self.assertEqual(done.stdout, b"begun\n")
                break
        self.assertLess(time.monotonic() - begun, PATIENCE)
        wait_until(lambda: not any("sleep 79" in one.cmd for one in self.box.commands.list()))
        # One that reads has all of it, and one that ends early is no failure.
        done = self.box.commands.capture("wc -c", input=b"x" * 1_000_000, timeout=PATIENCE)
        self.assertEqual((done.stdout, done.exit_code), (b"1000000\n", 0))
        done = self.box.commands.capture("exit 4", input=b"x" * 1_000_000, timeout=PATIENCE)
        self.assertEqual(done.exit_code, 4)

    def test_a_handle_s_output_is_taken_raw(self) -> None:
        handle = self.box.commands.run("printf '\\377'", background=True)
        self.assertEqual(list(handle.raw()), [(1, b"\xff")])

    def test_a_directory_is_packed_and_unpacked(self) -> None:
        self.box.files.write("/packed/deep/file", "x")
        with self.box.files.pack("/packed") as pieces:
            archive = b"".join(pieces)
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            self.assertIn("deep/file", [name.removeprefix("./") for name in tar.getnames()])
        self.box.files.unpack("/again", archive)
        self.assertEqual(self.box.files.read("/again/deep/file"), "x")


class AsyncCaptureTest(AsyncSandboxTest):
    async def test_stdin_is_written_while_output_is_read(self) -> None:
        data = b"x" * 5_000_000
        done = await self.box.commands.capture(["cat"], input=data)
        self.assertEqual(done.stdout, data)

    async def test_the_time_counts_while_a_command_does_not_read_its_input(self) -> None:
        begun = time.monotonic()
        cmd = "echo begun; sleep 7878 & exec sleep 7979"
        for timeout in limits(0.5):
            done = await self.box.commands.capture(cmd, input=b"x" * 1_000_000, timeout=timeout)
            self.assertIsNone(done.exit_code)
            if done.stdout:
                self.assertEqual(done.stdout, b"begun\n")
                break
        self.assertLess(time.monotonic() - begun, PATIENCE)

        async def none_is_left() -> bool:
            return not any("sleep 7" in one.cmd for one in await self.box.commands.list())

        await until(none_is_left)
