"""Images, volumes and snapshots."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import pathlib
import re
import socket
import subprocess
import tempfile
import threading
import unittest
from collections.abc import Generator

from micabox import (
    AsyncImages,
    AsyncSandbox,
    AsyncSnapshots,
    AsyncVolumes,
    InUseException,
    PullProgress,
    Sandbox,
    SandboxException,
    images,
    server,
    volumes,
)

from .archive import one_file
from .support import IMAGE, children, closed_port, mica, remove_image
from .waiting import until, wait_until

# Longer than the windows of the protocol.
BIG = bytes(range(256)) * 10_000

CONFIGURATION = """
version: 0.1
log: {{level: info, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: "127.0.0.1:0"}}
"""


@contextlib.contextmanager
def registry() -> Generator[str]:
    """A real registry on loopback; its name."""
    with tempfile.TemporaryDirectory() as place:
        configuration = pathlib.Path(place, "config.yml")
        configuration.write_text(CONFIGURATION.format(root=place))
        command = ["docker-registry", "serve", str(configuration)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            log = process.stderr
            assert log
            # It would wait for its log to be read.
            reader = threading.Thread(target=log.read)
            try:
                said = (re.search(r"listening on [\d.]+:(\d+)", line) for line in log)
                port = next(filter(None, said))[1]
                reader.start()
                yield f"localhost:{port}"
            finally:
                process.kill()
                if reader.ident:
                    reader.join()


def names() -> list[str]:
    """All names of images."""
    return [name for image in images.list() for name in image.references]


def assert_is_a_pull(test: unittest.TestCase, told: list[PullProgress]) -> None:
    """What was told is the pull of an image with one layer."""
    phases = [phase for phase, _ in itertools.groupby(one.phase for one in told)]
    test.assertEqual(phases, ["resolving", "pulling", "merging", "done"])
    last = told[-1]
    (layer,) = last.layers
    test.assertIn(layer.phase, ("done", "present"))
    test.assertRegex(layer.digest, "^sha256:[0-9a-f]{64}$")
    test.assertGreater(layer.total, 0)
    test.assertEqual({last.done, last.total, layer.done}, {layer.total})
    test.assertIsNone(layer.reason)


class ImagesTest(unittest.TestCase):
    def test_images_are_listed(self) -> None:
        (sample,) = [one for one in images.list() if one.layers == 4]
        self.assertEqual(sample.references, [f"docker.io/library/{IMAGE}:latest"])
        self.assertEqual(sample.platform, "linux/amd64")
        self.assertGreater(sample.size, 10 << 20)

    def test_an_image_goes_to_a_registry_and_comes_from_there(self) -> None:
        images.load(one_file("big", BIG), name="pushed")
        with registry() as name:
            images.push("pushed", f"{name}/mine:1")
            images.remove("pushed")
            images.pull(f"{name}/mine:1")
            self.assertIn(f"{name}/mine:1", names())
            images.remove(f"{name}/mine:1")
            self.assertNotIn(f"{name}/mine:1", names())

    def test_a_pull_tells_how_far_it_is(self) -> None:
        images.load(one_file("told", BIG), name="pushed")
        told: list[PullProgress] = []
        with registry() as host:
            name = f"{host}/mine:2"
            images.push("pushed", name)
            images.remove("pushed")
            images.pull(name, on_progress=told.append)
            assert_is_a_pull(self, told)
            told.clear()
            images.remove(name)
            with Sandbox.create(name, backend="host", net="none", on_progress=told.append) as box:
                assert_is_a_pull(self, told)
                told.clear()
                with Sandbox.create(name, backend="host", net="none", on_progress=told.append):
                    self.assertEqual(told, [])
                box.kill()

            def fail(progress: PullProgress) -> None:
                raise InUseException(progress.phase)

            remove_image(name)
            before = set(mica("ps", "--quiet").split())
            with self.assertRaisesRegex(InUseException, "resolving"):
                Sandbox.create(name, backend="host", net="none", on_progress=fail)
            # What nothing waits for any more is given up.
            wait_until(lambda: set(mica("ps", "--quiet").split()) <= before)
            if name in names():
                remove_image(name)
            commands = children(server.running().pid)
            with self.assertRaisesRegex(InUseException, "resolving"):
                images.pull(name, on_progress=fail)
            wait_until(lambda: not children(server.running().pid) - commands)

    def test_a_pull_that_fails_says_why_and_what_it_tried(self) -> None:
        notices: list[str] = []
        told: list[PullProgress] = []
        with closed_port() as port:
            with self.assertRaisesRegex(SandboxException, "cannot connect"):
                images.pull(f"localhost:{port}/x", on_notice=notices.append)
            self.assertIn("trying again", notices[0])
            with self.assertRaisesRegex(SandboxException, "cannot connect"):
                images.pull(
                    f"localhost:{port}/x", on_notice=notices.append, on_progress=told.append
                )
        self.assertIn("trying again", notices[-2])
        self.assertEqual({progress.phase for progress in told}, {"resolving"})

    def test_an_archive_holds_an_image(self) -> None:
        images.load(one_file("big", BIG), name="loaded")
        archive = io.BytesIO()
        images.save("loaded", archive)
        self.assertGreater(archive.tell(), len(BIG) // 100)
        images.remove("loaded")
        archive.seek(0)
        images.load(archive, name="again")
        images.tag("again", "twice")
        self.assertIn("docker.io/library/twice:latest", names())
        images.remove("again")
        images.remove("twice")
        with self.assertRaises(SandboxException) as raised:
            images.remove("twice")
        self.assertIn("twice", raised.exception.message)
        with self.assertRaises(SandboxException):
            images.load(io.BytesIO(b"no archive"), name="loaded")


class VolumesTest(unittest.TestCase):
    def test_a_volume_is_made_grown_and_removed(self) -> None:
        volumes.create("data", size="64m")
        volumes.resize("data", "128m")
        (volume,) = volumes.list()
        self.assertEqual((volume.name, volume.size, volume.sandboxes), ("data", 128 << 20, []))
        volumes.remove("data")
        self.assertEqual(volumes.list(), [])


class AsyncStoreTest(unittest.IsolatedAsyncioTestCase):
    async def test_the_same_for_asyncio(self) -> None:
        store, disks = AsyncImages(), AsyncVolumes()
        await store.load(one_file("big", BIG), name="small")
        await store.tag("small", "by-asyncio")
        found = [name for image in await store.list() for name in image.references]
        self.assertIn("docker.io/library/by-asyncio:latest", found)
        archive = io.BytesIO()
        await store.save("by-asyncio", archive)
        archive.seek(0)
        await store.load(archive, name="loaded")
        for name in ("by-asyncio", "loaded", "small"):
            await store.remove(name)
        with closed_port() as port, self.assertRaises(SandboxException):
            await store.pull(f"localhost:{port}/x")
        with self.assertRaises(SandboxException):
            await store.push("nonesuch")
        await disks.create("disk", "64m")
        await disks.resize("disk", "65m")
        self.assertEqual([disk.name for disk in await disks.list()], ["disk"])
        await disks.remove("disk")
        self.assertEqual(await AsyncSnapshots().list(), [])
        with self.assertRaises(SandboxException):
            await AsyncSnapshots().remove("nonesuch")

    async def test_a_pull_tells_how_far_it_is(self) -> None:
        store = AsyncImages()
        await store.load(one_file("told by asyncio", BIG), name="pushed")
        told: list[PullProgress] = []

        async def tell(progress: PullProgress) -> None:
            # Sleep: the callback is one that gives up its turn.
            await asyncio.sleep(0)
            told.append(progress)

        with registry() as host:
            name = f"{host}/mine:3"
            await store.push("pushed", name)
            await store.remove("pushed")
            await store.pull(name, on_progress=tell)
            assert_is_a_pull(self, told)
            told.clear()
            await store.remove(name)
            async with await AsyncSandbox.create(
                name, backend="host", net="none", on_progress=tell
            ):
                assert_is_a_pull(self, told)
            await asyncio.to_thread(remove_image, name)

    async def test_a_cancelled_pull_is_ended(self) -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            pull = AsyncImages().pull(f"localhost:{silent.getsockname()[1]}/x")
            before = children(server.running().pid)
            task = asyncio.create_task(pull)

            async def is_asked() -> bool:
                return bool(children(server.running().pid) - before)

            await until(is_asked)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

            async def is_over() -> bool:
                return not children(server.running().pid) - before

            await until(is_over)
