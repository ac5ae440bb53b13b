"""Sandboxes as a whole."""

import time
import unittest
import urllib.request

from micabox import (
    InvalidArgumentException,
    NameInUseException,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    UnsupportedException,
)

from .support import IMAGE, SandboxTest, make, mica
from .waiting import PATIENCE, wait_until


class SandboxesTest(unittest.TestCase):
    def test_a_block_ends_its_sandbox(self) -> None:
        with make() as box:
            self.assertTrue(box.is_running())
        self.assertFalse(box.is_running())
        self.assertFalse(box.kill())
        with self.assertRaises(SandboxNotRunningException) as gone:
            box.commands.run("true")
        self.assertEqual(str(gone.exception), "the sandbox is gone: it has been removed")
        with self.assertRaises(SandboxNotRunningException):
            box.files.read("/etc/passwd")
        with self.assertRaises(SandboxNotFoundException):
            box.get_info()

    def test_options_are_those_of_mica_run(self) -> None:
        with Sandbox.create(
            IMAGE,
            backend="host",
            name="with-options",
            cpus=1,
            envs={"A": "1"},
            env={"B": "2"},
            metadata={"job": "7"},
            hostname="lab",
            read_only=True,
            tmpfs=["/scratch:size=1m"],
            rm=False,
        ) as box:
            self.assertEqual(box.name, "with-options")
            self.assertEqual(box.image, "docker.io/library/sample:latest")
            info = box.get_info()
            self.assertEqual((info.metadata, info.state), ({"job": "7"}, "running"))
            self.assertEqual(info.sandbox_id, box.sandbox_id)
            self.assertAlmostEqual(info.started_at.timestamp(), time.time(), delta=60)
            said = box.commands.run(
                "hostname; echo $A$B; touch /x || echo no; touch /scratch/x", user="0"
            )
            self.assertEqual(said.stdout, "lab\n12\nno\n")
        self.assertEqual([one.state for one in Sandbox.list({"job": "7"}, all=True)], ["exited"])
        self.assertEqual(Sandbox.list({"job": "7"}), [])
        mica("rm", "with-options")

    def test_what_cannot_be_made_says_why(self) -> None:
        with self.assertRaises(InvalidArgumentException) as invalid:
            Sandbox.create(IMAGE, memory="lots")
        self.assertIn("memory", str(invalid.exception))
        with self.assertRaises(InvalidArgumentException):
            Sandbox.create(IMAGE, nonesuch=True)  # pyright: ignore[reportCallIssue]
        with self.assertRaises(InvalidArgumentException):
            Sandbox.create(IMAGE, interactive=True)  # pyright: ignore[reportCallIssue]
        with self.assertRaises(NotFoundException):
            Sandbox.create("nonesuch", pull="never")
        with make() as box, self.assertRaises(NameInUseException):
            Sandbox.create(IMAGE, backend="host", name=box.name)

    def test_a_timeout_is_the_sandbox_s_life(self) -> None:
        begun = time.monotonic()
        with Sandbox.create(IMAGE, backend="host", timeout=0.5) as box:
            wait_until(lambda: not box.is_running())
        self.assertGreater(time.monotonic() - begun, 0.4)
        with make() as box:
            box.set_timeout(600)
            box.set_timeout(0)
            self.assertTrue(box.is_running())
            begun = time.monotonic()
            box.set_timeout(0.5)
            wait_until(lambda: not box.is_running())
            self.assertGreater(time.monotonic() - begun, 0.4)

    def test_a_detached_one_continues_and_is_found_again(self) -> None:
        with make() as box:
            box.files.write("/kept", "1")
            box.detach()
        self.assertTrue(box.is_running())
        with Sandbox.connect(box.name) as again:
            self.assertEqual(again.files.read("/kept"), "1")
            self.assertEqual(again.commands.run("pwd; id -u").stdout, "/\n0\n")
        self.assertTrue(box.is_running())
        self.assertTrue(Sandbox.connect(box.sandbox_id[:12], timeout=60).kill())
        with self.assertRaises(SandboxNotFoundException):
            Sandbox.connect(box.sandbox_id)

    def test_one_that_has_ended_is_not_connected_to(self) -> None:
        with Sandbox.create(IMAGE, backend="host", rm=False) as box:
            self.assertTrue(box.stop())
        self.assertFalse(box.stop())
        with self.assertRaises(SandboxNotRunningException):
            Sandbox.connect(box.sandbox_id)
        mica("rm", box.sandbox_id)

    def test_a_published_port_leads_in(self) -> None:
        # On a port that is free.
        with Sandbox.create(
            IMAGE, backend="host", user="root", workdir="/srv", publish=["0:8000"]
        ) as box:
            self.assertRegex(box.get_host(8000), "^127.0.0.1:[1-9][0-9]*$")
            with self.assertRaises(NotFoundException):
                box.get_host(8001)
            box.files.write("page", "from inside")
            server = box.commands.run("python3 -u -m http.server 8000", background=True)
            next(iter(server))
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"http://{box.get_host(8000)}/page", timeout=PATIENCE) as page:
                self.assertEqual(page.read(), b"from inside")


class OneSandboxTest(SandboxTest):
    def test_a_paused_one_starts_nothing_until_it_continues(self) -> None:
        self.box.pause()
        self.assertEqual(self.box.get_info().state, "paused")
        with self.assertRaises(SandboxNotRunningException) as raised:
            self.box.commands.run("true")
        self.assertEqual(raised.exception.kind, "paused")
        self.box.resume()
        self.box.commands.run("true")
        self.box.pause()
        Sandbox.connect(self.box.sandbox_id)
        self.box.commands.run("true")

    def test_one_is_reached_by_its_id_on_the_class_too(self) -> None:
        with make() as other:
            sandbox_id = other.sandbox_id
            self.assertEqual(Sandbox.get_info(sandbox_id).sandbox_id, sandbox_id)
            Sandbox.pause(sandbox_id)
            self.assertEqual(Sandbox.get_info(other.name).state, "paused")
            self.assertIs(other.connect(), other)
            self.assertEqual(other.connect(timeout=60).get_info().state, "running")
            Sandbox.set_timeout(sandbox_id, 0)
            self.assertEqual(Sandbox.get_info(other).sandbox_id, sandbox_id)  # pyright: ignore
            self.assertTrue(Sandbox.kill(sandbox_id))
            self.assertFalse(Sandbox.kill(sandbox_id))
            with self.assertRaises(SandboxNotFoundException):
                Sandbox.pause(sandbox_id)
            with self.assertRaises(SandboxNotFoundException):
                other.connect()

    def test_a_name_can_be_changed(self) -> None:
        self.box.rename("another-name")
        self.assertEqual((self.box.name, self.box.get_info().name), ("another-name",) * 2)
        with self.assertRaises(SandboxException):
            self.box.rename("not a name")

    def test_stats_grow_with_use(self) -> None:
        before = self.box.stats().processor_time or 0
        busy = self.box.commands.run("while :; do :; done", background=True)
        wait_until(lambda: (self.box.stats().processor_time or 0) > before)
        busy.kill()
        own = self.box.stats().own_memory
        self.assertTrue(own is None or own > 0)

    def test_what_the_backend_cannot_do_is_refused(self) -> None:
        with self.assertRaises(UnsupportedException):
            self.box.fork(2)
        with self.assertRaises(SandboxException):
            self.box.create_snapshot()
        with self.assertRaises(SandboxException):
            self.box.diff()
