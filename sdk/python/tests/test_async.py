"""The same for asyncio."""

import asyncio
import gc
import inspect
import unittest
from collections.abc import AsyncIterator

import micabox
from micabox import (
    AsyncSandbox,
    AsyncWatchHandle,
    CommandExitException,
    FilesystemEvent,
    FilesystemEventType,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
    SandboxNotRunningException,
    TimeoutException,
)

from .support import AsyncSandboxTest, make_async
from .waiting import PATIENCE, until

BIG = bytes(range(256)) * 20_000


class AsyncTest(AsyncSandboxTest):
    async def test_commands(self) -> None:
        seen: list[str] = []

        async def see(text: str) -> None:
            seen.append(text)

        result = await self.box.commands.run("echo out; echo err >&2", on_stdout=see)
        self.assertEqual((result.stdout, result.stderr, seen), ("out\n", "err\n", ["out\n"]))
        with self.assertRaises(CommandExitException):
            await self.box.commands.run("exit 3")
        with self.assertRaises(TimeoutException):
            await self.box.commands.run("exec sleep 60", timeout=0.2)

    async def test_many_commands_run_at_once(self) -> None:
        # Each waits for all others.
        await self.box.files.make_dir("/met")
        meet = "touch /met/$N; while [ $(ls /met | wc -l) -lt 20 ]; do sleep 0.02; done; echo $N"
        work = (self.box.commands.run(meet, envs={"N": str(number)}) for number in range(20))
        results = await asyncio.wait_for(asyncio.gather(*work), PATIENCE)
        self.assertEqual([result.stdout for result in results], [f"{n}\n" for n in range(20)])

    async def test_a_command_in_the_background(self) -> None:
        handle = await self.box.commands.run("cat; echo end", background=True, stdin=True)
        await handle.send_stdin(BIG.hex())
        await handle.close_stdin()
        self.assertEqual((await handle.wait()).stdout, BIG.hex() + "end\n")
        handle = await self.box.commands.run("echo a; exec sleep 60", background=True)
        async for piece in handle:
            self.assertEqual(piece, ("a\n", None, None))
            await handle.kill()
        with self.assertRaises(CommandExitException):
            await handle.wait()

    async def test_callbacks_are_called_without_a_handle(self) -> None:
        seen: asyncio.Queue[str] = asyncio.Queue()
        waits = "while [ ! -e /go ]; do sleep 0.02; done; echo a"
        await self.box.commands.run(waits, background=True, on_stdout=seen.put)
        gc.collect()
        await self.box.files.write("/go", "")
        self.assertEqual(await asyncio.wait_for(seen.get(), PATIENCE), "a\n")
        handle = await self.box.commands.run("exit 3", background=True, on_stdout=seen.put)
        with self.assertRaises(CommandExitException):
            await handle.wait()

    async def test_a_cancelled_command_is_killed(self) -> None:
        task = asyncio.create_task(self.box.commands.run("exec sleep 61"))

        async def runs() -> bool:
            return "sleep 61" in [process.cmd for process in await self.box.commands.list()]

        await until(runs)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task

        async def is_over() -> bool:
            return not await runs()

        await until(is_over)

    async def test_files(self) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(BIG), 70_000):
                yield BIG[start : start + 70_000]

        await self.box.files.write("/a/big", pieces())
        self.assertEqual(await self.box.files.read("/a/big", "bytes"), BIG)
        async with await self.box.files.read("/a/big", "stream") as stream:
            self.assertEqual(b"".join([piece async for piece in stream]), BIG)
        await self.box.files.write_files([{"path": "/a/b", "data": "text"}])
        self.assertEqual(await self.box.files.read("/a/b"), "text")
        self.assertEqual([one.name for one in await self.box.files.list("/a")], ["b", "big"])
        self.assertTrue(await self.box.files.exists("/a/b"))
        await self.box.files.rename("/a/b", "/a/c")
        await self.box.files.remove("/a/c")
        self.assertFalse(await self.box.files.exists("/a/c"))
        self.assertTrue(await self.box.files.make_dir("/a/d"))
        self.assertEqual((await self.box.files.get_info("/a/big")).size, len(BIG))

    async def test_a_directory_is_watched(self) -> None:
        events: asyncio.Queue[FilesystemEvent] = asyncio.Queue()
        ends: asyncio.Queue[Exception | None] = asyncio.Queue()
        watch = await self.box.files.watch_dir("/tmp", events.put, ends.put)
        self.assertIsInstance(watch, AsyncWatchHandle)
        await self.box.files.write("/tmp/new", "")
        event = await asyncio.wait_for(events.get(), PATIENCE)
        self.assertEqual(event, FilesystemEvent("new", FilesystemEventType.CREATE))
        await watch.stop()
        await self.box.files.watch_dir("/tmp", events.put, ends.put)
        await self.box.kill()
        end = await asyncio.wait_for(ends.get(), PATIENCE)
        self.assertIsInstance(end, SandboxNotRunningException)

    async def test_a_terminal(self) -> None:
        handle = await self.box.pty.create(PtySize(30, 90))
        await self.box.pty.resize(handle.pid, PtySize(31, 91))
        await self.box.pty.send_stdin(handle.pid, b"stty size; exit\n")
        seen = b"".join([piece or b"" async for _, _, piece in handle])
        self.assertIn(b"31 91\r\n", seen)
        self.assertFalse(await self.box.pty.kill(handle.pid))

    async def test_a_sandbox_as_a_whole(self) -> None:
        await self.box.pause()
        again = await AsyncSandbox.connect(self.box.sandbox_id, timeout=60)
        self.assertEqual((await again.get_info()).state, "running")
        self.assertIn(again.sandbox_id, [one.sandbox_id for one in await AsyncSandbox.list()])
        await again.rename("by-asyncio")
        own = (await again.stats()).own_memory
        self.assertTrue(own is None or own > 0)
        await self.box.set_timeout(0)
        await self.box.detach()
        async with self.box:
            pass
        self.assertTrue(await self.box.is_running())
        self.assertTrue(await self.box.stop())

    async def test_what_the_backend_cannot_do_is_refused(self) -> None:
        refused = [
            self.box.fork(2),
            self.box.create_snapshot("x"),
            self.box.commit("x"),
            self.box.diff(),
        ]
        for attempt in refused:
            with self.assertRaises(SandboxException):
                await attempt
        with self.assertRaises(NotFoundException):
            self.box.get_host(80)
        await self.box.pause()
        await self.box.resume()

    async def test_commands_are_reached_by_their_pid(self) -> None:
        handle = await self.box.commands.run("cat; exec sleep 60", background=True, stdin=True)
        await self.box.commands.send_stdin(handle.pid, "typed")
        await self.box.commands.close_stdin(handle.pid)
        self.assertEqual(await anext(aiter(handle)), ("typed", None, None))
        self.assertEqual((handle.stdout, handle.stderr, handle.exit_code), ("typed", "", None))
        handle.disconnect()
        self.assertTrue(await self.box.commands.kill(handle.pid))
        left = await self.box.commands.run(
            "echo a; sleep 0.3; touch /left", background=True, on_stdout=print
        )
        left.disconnect()
        await until(lambda: self.box.files.exists("/left"))

    async def test_code_keeps_its_state(self) -> None:
        seen: list[str] = []
        await self.box.run_code("x = 1; print(x)", on_stdout=lambda one: seen.append(one.line))
        self.assertEqual((await self.box.run_code("x + 1")).text, "2")
        self.assertEqual(seen, ["1\n"])
        with self.assertRaises(asyncio.TimeoutError):
            await asyncio.wait_for(self.box.run_code("while True: pass"), 0.3)
        self.assertEqual((await self.box.run_code("x")).text, "1")
        await self.box.restart_code_context()
        self.assertIsNotNone((await self.box.run_code("x")).error)

    async def test_a_cancelled_create_leaves_nothing(self) -> None:
        before = len(await AsyncSandbox.list())
        for delay in (0, 0.002, 0.005, 0.01, 0.02, 0.04):
            task = asyncio.create_task(make_async())
            # Sleep: the cancellation may come at any moment.
            await asyncio.sleep(delay)
            if task.cancel():
                with self.assertRaises(asyncio.CancelledError):
                    await task
            else:
                await (await task).kill()

        async def none_is_left() -> bool:
            return len(await AsyncSandbox.list()) == before

        await until(none_is_left)

    async def test_one_is_reached_by_its_id_on_the_class_too(self) -> None:
        sandbox_id = self.box.sandbox_id
        await AsyncSandbox.pause(sandbox_id)
        self.assertEqual((await AsyncSandbox.get_info(sandbox_id)).state, "paused")
        self.assertIs(await self.box.connect(timeout=60), self.box)
        await AsyncSandbox.set_timeout(sandbox_id, 0)
        self.assertTrue(await AsyncSandbox.kill(sandbox_id))
        self.assertFalse(await AsyncSandbox.kill(sandbox_id))

    async def test_a_command_that_has_ended_is_neither_killed_nor_written_to(self) -> None:
        handle = await self.box.commands.run(
            "head -c 900000 /dev/zero", background=True, stdin=True
        )

        async def has_ended() -> bool:
            return handle.pid not in [one.pid for one in await self.box.commands.list()]

        async def is_known() -> bool:
            return not await handle.kill()

        await until(has_ended)
        await until(is_known)
        with self.assertRaises(NotFoundException):
            await handle.send_stdin("x")
        self.assertEqual(len((await handle.wait()).stdout), 900_000)
        self.assertEqual(handle.exit_code, 0)

    async def test_the_blocking_client_works_beside_an_event_loop(self) -> None:
        with Sandbox.connect(self.box.sandbox_id) as box:
            box.files.write("/x", BIG)
            self.assertEqual(box.commands.run("wc -c </x").stdout, f"{len(BIG)}\n")
            self.assertEqual(len(box.files.list("/")), len(await self.box.files.list("/")))


class FacesTest(AsyncSandboxTest):
    async def test_both_faces_have_the_same_methods(self) -> None:
        names = ["Sandbox", "Commands", "Filesystem", "Pty", "CommandHandle", "FileStreamReader"]
        names += ["Images", "Volumes", "Snapshots"]
        for name in names:
            blocking: type[object] = getattr(micabox, name)
            other: type[object] = getattr(micabox, f"Async{name}")
            public = {key for key in vars(blocking) if not key.startswith("_")}
            self.assertEqual(public, {key for key in vars(other) if not key.startswith("_")})
            for key in public - {"watch_dir"}:
                method = getattr(blocking, key)
                if callable(method):
                    expected = list(inspect.signature(method).parameters)
                    found = list(inspect.signature(getattr(other, key)).parameters)
                    self.assertEqual(found, expected, f"{name}.{key}")


class LoopsTest(unittest.TestCase):
    def test_code_runs_in_each_event_loop(self) -> None:
        async def begin() -> AsyncSandbox:
            box = await make_async()
            await box.run_code("x = 1")
            return box

        box = asyncio.run(begin())
        for _ in range(2):
            # An interpreter is of the event loop that it was started in.
            execution = asyncio.run(box.run_code("x = globals().get('x', 0) + 1; x"))
            self.assertEqual(execution.text, "1")
        asyncio.run(box.kill())
