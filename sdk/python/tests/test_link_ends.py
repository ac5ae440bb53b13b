"""Ends of connections that operations on files share, by an owner that the test is."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import tempfile
import unittest
import weakref
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from unittest import mock

from micabox import DisconnectedException, InvalidArgumentException
from micabox.core.exec import Defaults
from micabox.core.files import Files
from micabox.core.link import Link
from micabox.core.owner import Owner
from micabox.io import Io, sockets, tasks
from micabox.io.blocking import BlockingIo, complete
from micabox.io.tasks import TaskIo
from micabox.protocol.frames import PREAMBLE, Decoder, Frame, encode

from .links import none_idle, opened
from .waiting import PATIENCE


class Peer:
    """An owner's side of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._decoder = Decoder()
        self._frames: list[Frame] = []
        connection.settimeout(PATIENCE)
        connection.sendall(PREAMBLE)

    def frame(self) -> Frame:
        """The next frame of the client."""
        while not self._frames:
            self._frames += self._decoder.feed(self.connection.recv(1 << 16))
        return self._frames.pop(0)

    def send(self, number: int, **message: Any) -> None:
        self.connection.sendall(encode(number, message))

    def greet(self) -> None:
        self.send(self.frame().number, type="uncounted")

    def perform(self) -> None:
        """Performs an operation without a reply."""
        number = self.frame().number
        self.send(number, type="started", pid=1, window=0)
        self.send(number, type="exited", status={"exited": 0})


class EndTest(unittest.TestCase):
    """Ends of connections, by an owner that the test is."""

    def setUp(self) -> None:
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.directory = stack.enter_context(tempfile.TemporaryDirectory())
        self.listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        self.listener.bind(f"{self.directory}/control")
        self.listener.listen()
        self.pool = stack.enter_context(ThreadPoolExecutor(1))
        # Wakes an owner whose client does not come.
        self.addCleanup(self.listener.shutdown, socket.SHUT_RDWR)

    def serve(self, work: Callable[[Peer], object], greets: bool = True) -> Future[Peer]:
        """Does this for the next client."""

        def serve() -> Peer:
            peer = Peer(self.listener.accept()[0])
            self.addCleanup(peer.connection.close)
            if greets:
                peer.greet()
            work(peer)
            return peer

        return self.pool.submit(serve)

    def files(self, io: Io) -> Files:
        return Files(Owner(io, self.directory), Defaults({}))

    def each(self) -> Iterator[tuple[Io, Callable[[Coroutine[Any, Any, Any]], Any]]]:
        """What calls and what awaits."""
        yield BlockingIo(), complete
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            yield TaskIo(), loop.run_until_complete

    def test_an_end_behind_frames_is_noticed(self) -> None:
        for io, run in self.each():
            files = self.files(io)
            served = self.serve(Peer.perform)
            self.assertTrue(run(files.make_dir("/", None)))
            served.result().send(99, type="late")
            served.result().connection.close()
            served = self.serve(Peer.perform)
            self.assertTrue(run(files.make_dir("/", None)))
            served.result()

    def test_a_request_that_was_not_sent_is_made_anew(self) -> None:
        for io, run in self.each():
            files = self.files(io)
            served = self.serve(Peer.perform)
            self.assertTrue(run(files.make_dir("/", None)))
            served.result().connection.close()
            # The end comes behind the look for it.
            served = self.serve(Peer.perform, greets=False)
            with mock.patch.object(sockets, "has_ended", return_value=False):
                self.assertTrue(run(files.make_dir("/", None)))
            served.result()

    def test_a_request_that_may_have_begun_is_not_repeated(self) -> None:
        def leave(peer: Peer) -> None:
            peer.perform()
            peer.frame()
            peer.connection.close()

        for io, run in self.each():
            files = self.files(io)
            served = self.serve(leave)
            self.assertTrue(run(files.make_dir("/", None)))
            with self.assertRaises(DisconnectedException):
                run(files.make_dir("/", None))
            served.result()
            self.listener.setblocking(False)
            self.assertRaises(BlockingIOError, self.listener.accept)
            self.listener.setblocking(True)

    def test_answers_are_received_behind_the_end(self) -> None:
        for io, run in self.each():
            served = self.serve(Peer.perform)
            kept: Link = run(Link.connect(io, self.directory))
            channel = kept.open()
            assert channel
            run(channel.send(encode(channel.number, {"type": "exec"})))
            served.result().connection.close()
            self.assertIsNone(kept.open())
            self.assertEqual(run(channel.receive())[-1].message()["type"], "exited")
            channel.close(is_over=True)

    def test_a_timeout_is_refused(self) -> None:
        def leave(peer: Peer) -> None:
            peer.frame()
            peer.connection.close()

        for io, run in self.each():
            served = self.serve(leave)
            kept: Link = run(Link.connect(io, self.directory))
            channel = kept.open()
            assert channel
            run(channel.send(encode(channel.number, {"type": "exec"})))
            with self.assertRaises(InvalidArgumentException):
                run(channel.receive(1.0))
            kept.close()
            served.result()

    def test_one_that_is_given_up_does_not_outlive_the_last(self) -> None:
        served = self.serve(Peer.perform)
        kept = complete(Link.connect(BlockingIo(), self.directory))
        assert kept
        channel, given_up = kept.open(), kept.open()
        assert channel
        assert given_up
        complete(channel.send(encode(channel.number, {"type": "exec"})))
        complete(given_up.send(encode(given_up.number, {"type": "exec"})))
        given_up.close()
        while complete(channel.receive())[-1].message()["type"] != "exited":
            pass
        channel.close(is_over=True)
        peer = served.result()
        self.assertEqual(peer.frame().number, given_up.number)
        self.assertEqual(peer.connection.recv(1), b"")

    def test_one_that_was_never_idle_is_forgotten_silently(self) -> None:
        with none_idle() as idle:
            served = self.serve(lambda _: None)
            kept = complete(Link.connect(BlockingIo(), self.directory))
            assert kept
            channel = kept.open()
            assert channel
            other = weakref.ref(served.result())
            channel.close()
        idle[other] = None
        with mock.patch("sys.unraisablehook") as unraisable:
            del channel, kept
            gc.collect()
        del idle[other]
        unraisable.assert_not_called()

    def test_it_is_closed_for_another_event_loop(self) -> None:
        files = self.files(TaskIo())
        served = self.serve(Peer.frame)
        with opened() as made, ThreadPoolExecutor(1) as other:
            making = other.submit(lambda: asyncio.run(files.make_dir("/", None)))
            served.result()
            owner: Owner = files._owner  # pyright: ignore[reportPrivateUsage]
            owner.close()
            with self.assertRaises(DisconnectedException):
                making.result(PATIENCE)
        self.assertEqual([one.fileno() for one in made], [-1])

    def test_it_is_closed_for_an_event_loop_that_is_closed(self) -> None:
        files = self.files(TaskIo())
        served = self.serve(Peer.perform)
        with opened() as made, contextlib.closing(asyncio.new_event_loop()) as loop:
            self.assertTrue(loop.run_until_complete(files.make_dir("/", None)))
            loop.close()
            owner: Owner = files._owner  # pyright: ignore[reportPrivateUsage]
            owner.close()
        self.assertEqual([one.fileno() for one in made], [-1])
        self.assertEqual(served.result().connection.recv(1), b"")


class LineTest(unittest.IsolatedAsyncioTestCase):
    async def test_an_end_that_sending_finds_wakes_what_receives(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            line = tasks.Line(ours)
            with contextlib.suppress(BlockingIOError):
                while True:
                    ours.send(bytes(1 << 16))
            receiving = asyncio.ensure_future(line.frames())
            await asyncio.sleep(0)  # Sleep: the turn in which it begins.
            line.send_now(b"no room")
            with self.assertRaises(DisconnectedException):
                await asyncio.wait_for(receiving, PATIENCE)
