"""E2B's Python packages, unchanged, in the ways of their documentation. Run by run.py."""

from __future__ import annotations

import asyncio
import http.client
import io
import os
import tarfile
import time
import unittest
import urllib.error
import urllib.request

from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
    SandboxNotFoundException,
    SandboxQuery,
    Template,
    TimeoutException,
)
from e2b_code_interpreter import Sandbox as Interpreter
from run import FLAGS, PATIENCE, Server

IMAGE = "sample"


def until(what: str, is_so) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, f"not in time: {what}"
        # Sleep: the interval between questions.
        time.sleep(0.05)


def request(host: str, path: str, **headers: str) -> tuple[int, bytes]:
    """Asks a port of a sandbox by its host's name, which need not be one that is looked up."""
    server = os.environ["E2B_API_URL"].removeprefix("http://")
    connection = http.client.HTTPConnection(server, timeout=PATIENCE)
    try:
        connection.request("GET", path, headers={"Host": host, **headers})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


class OneSandbox(unittest.TestCase):
    box: Sandbox

    @classmethod
    def setUpClass(cls) -> None:
        cls.box = Sandbox.create(IMAGE, timeout=3600, envs={"GIVEN": "to all"})

    @classmethod
    def tearDownClass(cls) -> None:
        cls.box.kill()


class Commands(OneSandbox):
    def test_foreground(self) -> None:
        said: list[str] = []
        result = self.box.commands.run(
            "echo out; echo err >&2; echo $GIVEN $MINE $E2B_SANDBOX_ID; pwd",
            envs={"MINE": "mine"},
            cwd="/tmp",
            on_stdout=said.append,
        )
        expected = f"out\nto all mine {self.box.sandbox_id}\n/tmp\n"
        self.assertEqual((result.stdout, result.stderr), (expected, "err\n"))
        self.assertEqual("".join(said), expected)
        with self.assertRaises(CommandExitException) as caught:
            self.box.commands.run("exit 3")
        self.assertEqual(caught.exception.exit_code, 3)

    def test_users(self) -> None:
        self.assertEqual(self.box.commands.run("id -u", user="root").stdout, "0\n")
        with self.assertRaises(AuthenticationException):
            self.box.commands.run("id -u", user="nobody-here")

    def test_background(self) -> None:
        waits = "while [ ! -e /tmp/go ]; do sleep 0.05; done; echo later"
        handle = self.box.commands.run(waits, background=True)
        handle.disconnect()
        again = self.box.commands.connect(handle.pid)
        self.box.files.write("/tmp/go", "")
        self.assertEqual(again.wait().stdout, "later\n")
        handle = self.box.commands.run("sleep 100; echo never", background=True)
        listed = {one.pid: one for one in self.box.commands.list()}
        self.assertEqual(listed[handle.pid].args, ["-l", "-c", "sleep 100; echo never"])
        self.assertTrue(self.box.commands.kill(handle.pid))
        with self.assertRaises(CommandExitException):
            handle.wait()
        until("the command is gone", lambda: not self.box.commands.kill(handle.pid))
        # Nothing of a killed script is left.
        left = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; echo; done | grep -c 'sleep [1]00' || true"
        self.assertEqual(self.box.commands.run(left, user="root").stdout, "0\n")

    def test_stdin(self) -> None:
        handle = self.box.commands.run("cat", background=True, stdin=True)
        self.box.commands.send_stdin(handle.pid, "one ")
        self.box.commands.stream_input(handle.pid, ["two ", b"three"])
        self.box.commands.close_stdin(handle.pid)
        self.assertEqual(handle.wait().stdout, "one two three")

    def test_timeout(self) -> None:
        with self.assertRaises(TimeoutException):
            self.box.commands.run("sleep 30", timeout=1)
        until("the command is killed", lambda: not self.box.commands.list())

    def test_much_output(self) -> None:
        result = self.box.commands.run("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end >&2")
        self.assertEqual((len(result.stdout), result.stderr), (3000001, "end\n"))

    def test_terminal(self) -> None:
        handle = self.box.pty.create(PtySize(rows=24, cols=80), cwd="/tmp")
        self.box.pty.resize(handle.pid, PtySize(rows=30, cols=100))
        self.box.pty.send_stdin(handle.pid, b"stty size; pwd; exit\n")
        said = b"".join(data for _, _, data in handle if data)
        self.assertIn(b"30 100", said)
        self.assertIn(b"/tmp", said)


class Files(OneSandbox):
    def test_contents(self) -> None:
        files = self.box.files
        self.assertEqual(files.write("/tmp/new/a.txt", "text").path, "/tmp/new/a.txt")
        self.assertEqual(files.read("/tmp/new/a.txt"), "text")
        files.write("/tmp/empty", "")
        self.assertEqual(files.read("/tmp/empty"), "")
        data = os.urandom(5 << 20)
        files.write("/tmp/bytes", data)
        self.assertEqual(bytes(files.read("/tmp/bytes", format="bytes")), data)
        self.assertEqual(b"".join(files.read("/tmp/bytes", format="stream")), data)
        files.write("/tmp/packed", data, gzip=True)
        self.assertEqual(bytes(files.read("/tmp/packed", format="bytes")), data)
        files.write_files([{"path": f"/tmp/many/{n}", "data": str(n)} for n in range(3)])
        self.assertEqual(files.read("/tmp/many/2"), "2")
        files.write("of-the-user.txt", "x", user="root")
        self.assertEqual(files.read("~/of-the-user.txt", user="root"), "x")
        self.assertTrue(files.exists("/root/of-the-user.txt", user="root"))

    def test_entries(self) -> None:
        files = self.box.files
        self.assertTrue(files.make_dir("/tmp/d/e"))
        self.assertFalse(files.make_dir("/tmp/d/e"))
        files.write("/tmp/d/f", "12345")
        self.box.commands.run("ln -s f /tmp/d/link; chmod 640 /tmp/d/f")
        entries = {entry.name: entry for entry in files.list("/tmp/d")}
        self.assertEqual(sorted(entries), ["e", "f", "link"])
        kinds = [entries[name].type.value for name in ("e", "f", "link")]
        self.assertEqual(kinds, ["dir", "file", "symlink"])
        self.assertEqual((entries["f"].size, entries["f"].mode), (5, 0o640))
        self.assertEqual(entries["link"].symlink_target, "/tmp/d/f")
        self.assertEqual(entries["link"].mode, 0o640)
        self.assertEqual(files.rename("/tmp/d/f", "/tmp/far/g").path, "/tmp/far/g")
        self.assertFalse(files.exists("/tmp/d/f"))
        files.remove("/tmp/far")
        self.assertFalse(files.exists("/tmp/far/g"))
        with self.assertRaises(NotFoundException):
            files.read("/tmp/far/g")
        with self.assertRaises(InvalidArgumentException):
            files.read("/tmp")

    def test_changes(self) -> None:
        files = self.box.files
        files.make_dir("/tmp/watched/below")
        watch = files.watch_dir("/tmp/watched", recursive=True, include_entry=True)
        files.write("/tmp/watched/below/a", "1")
        files.rename("/tmp/watched/below/a", "/tmp/watched/b")
        files.remove("/tmp/watched/b")
        # A change is there when the call that made it has returned.
        seen = [(event.name, event.type.value) for event in watch.get_new_events()]
        self.assertIn(("b", "remove"), seen)
        for event in [
            ("below/a", "create"),
            ("below/a", "write"),
            ("below/a", "rename"),
            ("b", "create"),
        ]:
            self.assertIn(event, seen)
        watch.stop()

    def test_addresses(self) -> None:
        self.box.files.write("/tmp/of ü.txt", "data")
        url = self.box.download_url("/tmp/of ü.txt", use_signature_expiration=60)
        with urllib.request.urlopen(url) as reply:
            self.assertEqual(reply.read(), b"data")
        for wrong in (
            url.replace("signature=v1_", "signature=v1_A"),
            url.replace("expiration=", "expiration=9"),
        ):
            with self.assertRaises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(wrong)
            self.assertEqual(caught.exception.code, 401)
            caught.exception.close()


class Lifecycle(unittest.TestCase):
    def test_lists_and_metadata(self) -> None:
        boxes = [Sandbox.create(IMAGE, metadata={"of": "list", "n": f"{n} &="}) for n in range(3)]
        try:
            query = SandboxQuery(metadata={"of": "list"})
            pages = Sandbox.list(query=query, limit=2)
            found = pages.next_items()
            self.assertEqual((len(found), pages.has_next), (2, True))
            found += pages.next_items()
            self.assertEqual({one.sandbox_id for one in found}, {box.sandbox_id for box in boxes})
            one = Sandbox.list(query=SandboxQuery(metadata={"n": "1 &="})).next_items()
            self.assertEqual([box.sandbox_id for box in one], [boxes[1].sandbox_id])
            self.assertEqual(one[0].metadata, {"of": "list", "n": "1 &="})
        finally:
            for box in boxes:
                self.assertTrue(box.kill())
        self.assertFalse(boxes[0].is_running())
        self.assertFalse(boxes[0].kill())
        with self.assertRaises(SandboxNotFoundException):
            Sandbox.connect(boxes[0].sandbox_id)

    def test_deadlines(self) -> None:
        box = Sandbox.create(IMAGE, timeout=1000)
        before = time.time()
        box.set_timeout(500)
        after = time.time()
        end = box.get_info().end_at.timestamp()
        # Of another clock, in whole seconds.
        self.assertTrue(before + 498 < end < after + 502, (before, end, after))
        Sandbox.connect(box.sandbox_id, timeout=10)
        self.assertGreater(box.get_info().end_at.timestamp(), before + 498)
        box.set_timeout(1)
        until("the sandbox has ended", lambda: not box.is_running())

    def test_pauses(self) -> None:
        box = Sandbox.create(IMAGE, timeout=100)
        try:
            box.commands.run("sleep 1000", background=True, timeout=0)
            self.assertTrue(box.pause())
            self.assertFalse(box.pause())
            self.assertFalse(box.is_running())
            self.assertEqual(box.get_info().state.value, "paused")
            again = Sandbox.connect(box.sandbox_id, timeout=100)
            self.assertEqual(len(again.commands.list()), 1)
            self.assertEqual(again.commands.run("echo again").stdout, "again\n")
        finally:
            box.kill()

    def test_a_pause_at_the_deadline_and_a_request_that_ends_it(self) -> None:
        lifecycle = {"on_timeout": "pause", "auto_resume": True}
        box = Sandbox.create(IMAGE, lifecycle=lifecycle)
        try:
            box.commands.run("echo kept >/tmp/kept")
            box.set_timeout(1)
            until("the sandbox is paused", lambda: box.get_info().state.value == "paused")
            self.assertEqual(box.files.read("/tmp/kept"), "kept\n")
            self.assertEqual(box.get_info().state.value, "running")
        finally:
            box.kill()

    def test_what_needs_a_machine_is_refused(self) -> None:
        box = Sandbox.create(IMAGE)
        try:
            with self.assertRaisesRegex(SandboxException, "disk"):
                box.create_snapshot("none")
            with self.assertRaisesRegex(SandboxException, "KVM"):
                box.fork()
            self.assertTrue(box.is_running())
        finally:
            box.kill()
        with self.assertRaisesRegex(SandboxException, "501"):
            Sandbox.create(IMAGE, mcp={"duckduckgo": {}})
        with self.assertRaises(SandboxException):
            Sandbox.create("no-such-image-here:1")

    def test_the_key(self) -> None:
        for key in ("e2b_" + "0" * 40, "x"):
            with self.assertRaises(AuthenticationException):
                Sandbox.create(IMAGE, api_key=key)

    def test_templates(self) -> None:
        self.assertTrue(Template.exists(IMAGE))
        self.assertFalse(Template.exists("no-such-image-here"))

    def test_no_network(self) -> None:
        box = Sandbox.create(IMAGE, allow_internet_access=False)
        try:
            interfaces = box.commands.run("ls /sys/class/net").stdout.split()
            self.assertEqual(interfaces, ["lo"])
        finally:
            box.kill()


class Ports(unittest.TestCase):
    def serve(self, box: Sandbox) -> str:
        box.commands.run("mkdir -p /tmp/www; echo page >/tmp/www/page")
        serve = "cd /tmp/www && exec python3 -m http.server 8000"
        box.commands.run(serve, background=True, timeout=0)
        return box.get_host(8000)

    def test_a_port(self) -> None:
        box = Sandbox.create(IMAGE)
        try:
            host = self.serve(box)
            self.assertTrue(host.startswith(f"8000-{box.sandbox_id}.localhost:"))
            until("the server answers", lambda: request(host, "/page") == (200, b"page\n"))
            self.assertEqual(request(host, "/none")[0], 404)
            status, body = request(box.get_host(8001), "/")
            self.assertEqual(status, 502)
            self.assertIn(b"port is not open", body)
        finally:
            box.kill()
        self.assertEqual(request(host, "/page")[0], 502)

    def test_a_port_that_is_not_public(self) -> None:
        box = Sandbox.create(IMAGE, network={"allow_public_traffic": False})
        try:
            host = self.serve(box)
            token = {"e2b-traffic-access-token": str(box.traffic_access_token)}
            until("the server answers", lambda: request(host, "/page", **token)[0] == 200)
            self.assertEqual(request(host, "/page")[0], 403)
        finally:
            box.kill()


class Restart(unittest.TestCase):
    def test_sandboxes_survive_the_server(self) -> None:
        server = Server(*FLAGS)
        options = {
            "api_url": server.variables["E2B_API_URL"],
            "sandbox_url": server.variables["E2B_SANDBOX_URL"],
        }
        pause = {"on_timeout": "pause"}
        box = Sandbox.create(IMAGE, timeout=100, metadata={"a": "b"}, **options)
        paused = Sandbox.create(IMAGE, timeout=3, lifecycle=pause, **options)
        script = "echo $$ >/tmp/pid; while read line; do echo got $line; done; exit 3"
        command = box.commands.run(script, background=True, timeout=0, stdin=True)
        until("the command runs", lambda: box.files.exists("/tmp/pid"))
        begun = time.monotonic()
        late = box.commands.run("sleep 1000", background=True, timeout=10)
        before = box.get_info()
        server.end()
        with self.assertRaises(SandboxException):
            box.commands.run("true")
        server = Server(*FLAGS, address=server.address)
        try:
            self.assertEqual(box.get_info(), before)
            self.assertEqual(
                box.commands.run("kill -0 $(cat /tmp/pid) && echo runs").stdout, "runs\n"
            )
            listed = {one.pid: one.args[-1] for one in box.commands.list()}
            expected = {command.pid: script, late.pid: "sleep 1000"}
            if time.monotonic() - begun > 9 and late.pid not in listed:
                del expected[late.pid]  # its time may have been over before
            self.assertEqual(listed, expected)
            again = box.commands.connect(command.pid)
            box.commands.send_stdin(command.pid, "one\n")
            box.commands.close_stdin(command.pid)
            with self.assertRaises(CommandExitException) as caught:
                again.wait()
            self.assertEqual(
                (caught.exception.exit_code, caught.exception.stdout), (3, "got one\n")
            )
            until("its deadline holds", lambda: paused.get_info().state.value == "paused")
            until("the command's time is over", lambda: not box.commands.list())
        finally:
            box.kill()
            paused.kill()
            server.end()


class Machine(unittest.TestCase):
    def test_a_snapshot_of_a_machine_without_kvm(self) -> None:
        server = Server("--with=backend=qemu", "--with=memory=256m")
        options = {
            "api_url": server.variables["E2B_API_URL"],
            "sandbox_url": server.variables["E2B_SANDBOX_URL"],
        }
        box = Sandbox.create(IMAGE, **options)
        try:
            box.files.write("/kept", "kept", user="root")
            box.commands.run("sync")
            snapshot = box.create_snapshot("of-the-test")
            listed = [one.snapshot_id for one in box.list_snapshots().next_items()]
            self.assertEqual(listed, [snapshot.snapshot_id])
            copy = Sandbox.create(snapshot.snapshot_id, **options)
            try:
                self.assertEqual(copy.files.read("/kept", user="root"), "kept")
            finally:
                copy.kill()
            self.assertTrue(Sandbox.delete_snapshot(snapshot.snapshot_id, **options))
            self.assertFalse(Sandbox.delete_snapshot(snapshot.snapshot_id, **options))
        finally:
            box.kill()
            server.end()


# What a kernel knows of pandas, matplotlib and E2B's charts.
FORMS = """
import sys
from types import SimpleNamespace

class DataFrame:
    size = 2
    def to_dict(self, orient):
        return {"a": [1.5, float("nan")]}

class Figure:
    pass

chart = {"type": "unknown", "title": "lines", "elements": []}
sys.modules["pandas"] = SimpleNamespace(DataFrame=DataFrame)
sys.modules["matplotlib.figure"] = SimpleNamespace(Figure=Figure)
sys.modules["e2b_charts"] = SimpleNamespace(chart_figure_to_dict=lambda figure: chart)
display(DataFrame(), Figure())
"""


class Code(unittest.TestCase):
    def test_state_is_kept(self) -> None:
        box = Interpreter.create()
        try:
            self.code(box)
            execution = box.run_code("import sys; 'ipykernel' in sys.modules")
            self.assertEqual(execution.text, "False")
        finally:
            box.kill()

    def test_ipythons_kernel(self) -> None:
        # The image gets a kernel from here.
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(os.environ["E2B_TEST_KERNEL"], "kernel")
        server = Server(*FLAGS, "--with=env=PYTHONPATH=/tmp/kernel")
        try:
            url = server.variables["E2B_API_URL"]
            box = Interpreter.create(api_url=url, sandbox_url=url)
            try:
                box.files.write("/tmp/kernel.tar", archive.getvalue())
                box.commands.run("tar -C /tmp -xf /tmp/kernel.tar")
                self.code(box)
                self.assertEqual(
                    box.run_code("import sys; 'ipykernel' in sys.modules").text, "True"
                )
                shown = box.run_code("from IPython.display import HTML; HTML('<b>x</b>')")
                self.assertEqual(shown.results[0].html, "<b>x</b>")
                results = box.run_code(FORMS).results
                self.assertEqual(results[0].data, {"a": [1.5, None]})
                assert results[1].chart
                self.assertEqual(results[1].chart.title, "lines")
            finally:
                box.kill()
        finally:
            server.end()

    def test_code_in_a_sandbox_that_is_killed_raises(self) -> None:
        box = Interpreter.create()
        self.assertEqual(len(box.list_code_contexts()), 1)
        box.kill()
        box = Interpreter.create()
        context = box.create_code_context()
        # The newest is last: the one for code without a context is made by the list.
        self.assertEqual([one.id for one in box.list_code_contexts()][1:], [context.id])
        with self.assertRaises(TimeoutException):
            # It ends once the code runs.
            box.run_code(
                "print('runs'); import time; time.sleep(60)", on_stdout=lambda _: box.kill()
            )
        with self.assertRaises(TimeoutException):
            box.run_code("1")

    def code(self, box: Interpreter) -> None:
        box.run_code("x = 1")
        said: list[str] = []
        execution = box.run_code(
            "x += 1\nprint('said')\nx", on_stdout=lambda one: said.append(one.line)
        )
        self.assertIsNone(execution.error)
        self.assertEqual((execution.text, "".join(execution.logs.stdout)), ("2", "said\n"))
        self.assertEqual("".join(said), "said\n")
        failed = box.run_code("1/0")
        assert failed.error
        self.assertEqual(failed.error.name, "ZeroDivisionError")
        self.assertEqual(box.run_code("import os; os.environ['V']", envs={"V": "7"}).text, "7")
        self.assertEqual(box.run_code("'V' in os.environ").text, "False")
        context = box.create_code_context(cwd="/tmp")
        self.assertEqual(box.run_code("os.getcwd()", context=context).error.name, "NameError")
        self.assertEqual(box.run_code("import os; os.getcwd()", context=context).text, "/tmp")
        self.assertEqual(len(box.list_code_contexts()), 2)
        box.restart_code_context(context)
        self.assertEqual(box.run_code("os.getcwd()", context=context).error.name, "NameError")
        box.remove_code_context(context)
        self.assertEqual(len(box.list_code_contexts()), 1)
        with self.assertRaises(TimeoutException):
            box.run_code("import time; time.sleep(60)", timeout=1)
        self.assertEqual(box.run_code("x").text, "2")
        with self.assertRaisesRegex(SandboxException, "501"):
            box.run_code("1", language="r")


class Async(unittest.IsolatedAsyncioTestCase):
    async def test_asyncio(self) -> None:
        box = await AsyncSandbox.create(IMAGE)
        try:
            names: list[str] = []
            watch = await box.files.watch_dir(
                "/tmp", on_event=lambda event: names.append(event.name)
            )
            results = await asyncio.gather(*[box.commands.run(f"echo {n}") for n in range(20)])
            self.assertEqual([one.stdout for one in results], [f"{n}\n" for n in range(20)])
            await box.files.write("/tmp/of-async", "1")
            await asyncio.to_thread(until, "the change is told", lambda: "of-async" in names)
            await watch.stop()
        finally:
            await box.kill()


if __name__ == "__main__":
    unittest.main()
