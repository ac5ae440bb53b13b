"""The connection that operations on files share."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import unittest
import weakref
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from micabox import (
    AsyncSandbox,
    CommandExitException,
    DisconnectedException,
    Sandbox,
    SandboxNotRunningException,
)
from micabox.core import link
from micabox.core.link import Link, LinkChannel

from .links import none_idle, opened
from .support import IMAGE, AsyncSandboxTest, SandboxTest, make, mica, python
from .waiting import wait_until


class LinkTest(SandboxTest):
    def test_a_thousand_operations_use_one_connection(self) -> None:
        box = Sandbox.connect(self.box.sandbox_id)
        with opened() as made:
            for number in range(250):
                box.files.write(f"/many/{number}", str(number))
                self.assertEqual(box.files.read(f"/many/{number}"), str(number))
                self.assertTrue(box.files.exists(f"/many/{number}"))
                self.assertFalse(box.files.exists(f"/many/{number}.not"))
        self.assertEqual(len(made), 1)
        self.assertEqual(len(box.files.list("/many")), 250)

    def test_large_reads_beside_large_writes(self) -> None:
        large = bytes(8 << 20)
        self.box.files.write("/large", large)

        def work(number: int) -> None:
            if number % 2:
                self.assertEqual(self.box.files.read("/large", format="bytes"), large)
            else:
                self.box.files.write(f"/large.{number}", large)

        with opened() as made, ThreadPoolExecutor(6) as pool:
            for _ in pool.map(work, range(6)):
                pass
        self.assertEqual(len(made), 0)

    def test_threads_share_it(self) -> None:
        def work(thread: int) -> None:
            for number in range(50):
                path = f"/threads/{thread}/{number}"
                self.box.files.write(path, path * 100)
                self.assertEqual(self.box.files.read(path), path * 100)
                self.box.files.remove(path)
                self.assertFalse(self.box.files.exists(path))

        with opened() as made, ThreadPoolExecutor(8) as pool:
            for _ in pool.map(work, range(8)):
                pass
        self.assertLessEqual(len(made), 1)

    def test_an_operation_that_waits_is_in_the_way_of_no_other(self) -> None:
        said, more = threading.Event(), threading.Event()

        def pieces() -> Iterator[bytes]:
            yield b"first "
            said.set()
            more.wait()
            yield b"second"

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(lambda: self.box.files.write("/slow", pieces()))
            said.wait()
            with opened() as made:
                self.assertFalse(self.box.files.exists("/nothing"))
                self.box.files.write("/quick", "quick")
            self.assertEqual(made, [])
            more.set()
            writing.result()
        self.assertEqual(self.box.files.read("/slow"), "first second")

    def test_an_operation_that_is_given_up_ends_alone(self) -> None:
        said, more = threading.Event(), threading.Event()

        def broken() -> Iterator[bytes]:
            yield b"first"
            said.wait()
            raise KeyboardInterrupt

        def pieces() -> Iterator[bytes]:
            yield b"a"
            said.set()
            more.wait()
            yield b"b"

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(lambda: self.box.files.write("/goes-on", pieces()))
            with self.assertRaises(KeyboardInterrupt):
                self.box.files.write("/given-up", broken())
            more.set()
            writing.result()
        self.assertEqual(self.box.files.read("/goes-on"), "ab")
        # Alone, it is ended with the connection, and the next one has another.
        with self.assertRaises(KeyboardInterrupt):
            self.box.files.write("/given-up", broken())
        self.assertTrue(self.box.files.exists("/goes-on"))

    def test_a_kept_process_is_no_process_of_the_sandbox(self) -> None:
        self.box.files.exists("/")

        def is_listed() -> bool:
            # Process 1 is the agent's reaper.
            others = [process.cmd for process in self.box.commands.list() if process.pid != 1]
            return any(cmd.startswith("mica-guest") for cmd in others)

        # One that is ended, as it was not used for a while, may be in the list for a moment.
        wait_until(lambda: not is_listed())

    def test_it_is_closed_with_its_sandbox(self) -> None:
        box = Sandbox.connect(self.box.sandbox_id)
        with opened() as made:
            self.assertTrue(box.files.exists("/"))
        (connection,) = made
        place = os.readlink(f"/proc/self/fd/{connection.fileno()}")
        del box
        gc.collect()
        left = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        self.assertNotIn(place, [os.readlink(path) for path in left if os.path.lexists(path)])

    def test_an_end_of_the_sandbox_is_noticed(self) -> None:
        box = make()
        self.assertTrue(box.files.exists("/"))
        other = Sandbox.connect(box.sandbox_id)
        self.assertTrue(other.files.exists("/"))
        box.kill()
        with self.assertRaises((SandboxNotRunningException, DisconnectedException)):
            other.files.exists("/")
        with self.assertRaises(SandboxNotRunningException):
            other.files.exists("/")

    def test_a_user_is_resolved_for_each_operation(self) -> None:
        sh = self.box.commands.run
        try:
            for uid in (5001, 5002):
                sh(
                    f"sed -i /^changing:/d /etc/passwd; echo changing:x:{uid}:{uid}::/: >>/etc/passwd"
                )
                self.box.files.make_dir(f"/tmp/of-{uid}", user="changing")
                self.assertEqual(sh(f"stat -c %u:%g /tmp/of-{uid}").stdout, f"{uid}:{uid}\n")
        finally:
            sh("sed -i /^changing:/d /etc/passwd")

    def test_it_is_no_use_of_the_sandbox(self) -> None:
        box = Sandbox.create(IMAGE, backend="host", idle_timeout="2s")
        # In use until the connection is there.
        handle = box.commands.run("cat", background=True, stdin=True)
        box.detach()
        self.assertTrue(box.files.exists("/"))
        handle.kill()
        with self.assertRaises(CommandExitException):
            handle.wait()
        wait_until(lambda: box.sandbox_id not in mica("ps", "--quiet", "--no-trunc"))
        mica("rm", "--force", box.sandbox_id)

    def test_a_forked_child_has_its_own(self) -> None:
        done = python(
            """
            import os, sys
            from micabox import Sandbox
            from micabox.core import link
            link._MOST_IDLE = 2
            boxes = [Sandbox.connect(sys.argv[1]) for _ in range(3)]
            for box in boxes:
                assert box.files.exists("/")
            child = os.fork()
            if not child:
                assert not link._idle
                for box in boxes:
                    assert box.files.exists("/")
                    assert not box.files.exists("/none")
                os._exit(0)
            for number in range(100):
                assert boxes[number % 3].files.exists("/")
            assert os.waitpid(child, 0)[1] == 0
            for box in boxes:
                assert box.files.exists("/")
            """,
            self.box.sandbox_id,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class IdleTest(SandboxTest):
    """Connections without a request are limited."""

    def boxes(self, count: int) -> list[Sandbox]:
        """Objects with a connection each."""
        return [Sandbox.connect(self.box.sandbox_id) for _ in range(count)]

    def test_the_least_recently_used_is_closed(self) -> None:
        boxes = self.boxes(80)
        with opened() as made:
            for box in boxes:
                self.assertTrue(box.files.exists("/"))
            self.assertEqual([one.fileno() < 0 for one in made], [True] * 16 + [False] * 64)
            for box in reversed(boxes[16:]):
                self.assertTrue(box.files.exists("/"))
            self.assertEqual(len(made), 80)
            self.assertTrue(boxes[0].files.exists("/"))
            self.assertEqual(len(made), 81)
            self.assertEqual([one.fileno() < 0 for one in made].index(False), 16)
            self.assertLess(made[79].fileno(), 0)

    def test_one_with_a_request_is_not_closed(self) -> None:
        said, more = threading.Event(), threading.Event()

        def pieces() -> Iterator[bytes]:
            yield b"first "
            said.set()
            more.wait()
            yield b"second"

        busy, *others = self.boxes(4)
        with (
            mock.patch.object(link, "_MOST_IDLE", 1),
            opened() as made,
            ThreadPoolExecutor(1) as pool,
        ):
            writing = pool.submit(lambda: busy.files.write("/busy", pieces()))
            said.wait()
            for box in others:
                self.assertTrue(box.files.exists("/"))
            more.set()
            writing.result()
            self.assertEqual(busy.files.read("/busy"), "first second")
        self.assertEqual(len(made), 4)

    def test_a_request_that_begins_at_that_moment_goes_on(self) -> None:
        (box,) = self.boxes(1)
        begun: list[LinkChannel | None] = []
        close_idle = Link.close_idle

        def begin(self: Link) -> None:
            if not begun:
                begun.append(self.open())
            close_idle(self)

        with (
            none_idle(),
            mock.patch.object(link, "_MOST_IDLE", 0),
            mock.patch.object(Link, "close_idle", begin),
            opened() as made,
        ):
            self.assertTrue(box.files.exists("/"))
            (channel,), (connection,) = begun, made
            assert channel
            self.assertGreaterEqual(connection.fileno(), 0)
            self.assertTrue(box.files.exists("/"))
            self.assertEqual(len(made), 1)
            channel.close(is_over=True)
            self.assertLess(connection.fileno(), 0)
            self.assertTrue(box.files.exists("/"))

    def test_threads_close_each_others(self) -> None:
        boxes = self.boxes(3)

        def work(thread: int) -> None:
            for number in range(100):
                self.assertTrue(boxes[(thread + number) % 3].files.exists("/"))

        with mock.patch.object(link, "_MOST_IDLE", 1), ThreadPoolExecutor(4) as pool:
            for _ in pool.map(work, range(4)):
                pass

    def test_event_loops_close_each_others(self) -> None:
        async def work(_: int) -> None:
            boxes = [await AsyncSandbox.connect(self.box.sandbox_id) for _ in range(2)]
            for number in range(100):
                self.assertTrue(await boxes[number % 2].files.exists("/"))

        with mock.patch.object(link, "_MOST_IDLE", 1), ThreadPoolExecutor(3) as pool:
            for _ in pool.map(asyncio.run, map(work, range(3))):
                pass


class AsyncLinkTest(AsyncSandboxTest):
    async def test_tasks_share_it(self) -> None:
        async def work(task: int) -> None:
            path = f"/tasks/{task}"
            await self.box.files.write(path, path * 1000)
            self.assertEqual(await self.box.files.read(path), path * 1000)

        with opened() as made:
            await asyncio.gather(*map(work, range(50)))
        self.assertEqual(len(made), 1)

    async def test_large_reads_beside_large_writes(self) -> None:
        large = bytes(8 << 20)
        await self.box.files.write("/tasks.large", large)

        async def work(number: int) -> None:
            if number % 2:
                read = await self.box.files.read("/tasks.large", format="bytes")
                self.assertEqual(read, large)
            else:
                await self.box.files.write(f"/tasks.large.{number}", large)

        with opened() as made:
            await asyncio.gather(*map(work, range(6)))
        self.assertEqual(len(made), 0)

    async def test_a_task_that_is_cancelled_ends_alone(self) -> None:
        said = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            yield b"first"
            said.set()
            await asyncio.Event().wait()

        self.assertTrue(await self.box.files.exists("/"))
        writing = asyncio.create_task(self.box.files.write("/endless", endless()))
        await said.wait()
        looks = asyncio.gather(*(self.box.files.exists("/") for _ in range(20)))
        writing.cancel()
        self.assertEqual(await looks, [True] * 20)
        with self.assertRaises(asyncio.CancelledError):
            await writing
        self.assertTrue(await self.box.files.exists("/"))


class EventLoopsTest(unittest.TestCase):
    def test_each_event_loop_has_its_own(self) -> None:
        box = make()
        try:
            found = asyncio.run(AsyncSandbox.connect(box.sandbox_id))
            for _ in range(2):
                self.assertTrue(asyncio.run(found.files.exists("/")))
        finally:
            box.kill()

    def test_one_that_is_closed_is_not_kept(self) -> None:
        box = make()
        loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []
        # The last one stays, whatever else refers to it.
        last: list[asyncio.AbstractEventLoop] = []

        async def work(found: AsyncSandbox) -> None:
            last[:] = [asyncio.get_running_loop()]
            loops.append(weakref.ref(last[0]))
            # Where tasks wait for each other, their locks refer to the event loop.
            await asyncio.gather(*(found.files.exists("/") for _ in range(3)))

        try:
            found = asyncio.run(AsyncSandbox.connect(box.sandbox_id))
            with opened() as made:
                for _ in range(3):
                    asyncio.run(work(found))
            gc.collect()
            self.assertEqual([one() is None for one in loops[:2]], [True, True])
            self.assertEqual([one.fileno() < 0 for one in made], [True, True, False])
        finally:
            box.kill()
