"""The examples, as a user would run them; but on this machine's own kernel where they need no machine."""

from __future__ import annotations

import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import unittest

from micabox import Sandbox, images

from .archive import folder
from .support import IMAGE, REPOSITORY, python

EXAMPLES = REPOSITORY / "sdk" / "python" / "examples"
SLIM = '"python:3.12-slim"'
ON_HOST = f'"{IMAGE}", backend="host", user="root"'
MATPLOTLIB = "matplotlib==3.11.2"


class ExamplesTest(unittest.TestCase):
    def run_example(self, name: str, *args: str, **changes: str) -> str:
        """What an example prints, with these changes: of an image's name, for one."""
        program = (EXAMPLES / f"{name}.py").read_text()
        for old, new in {SLIM: f'"{IMAGE}"', **changes}.items():
            program = program.replace(old, new)
        done = python(program, *args)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_an_agent_s_tool_calls(self) -> None:
        said = self.run_example("tool_call", **{SLIM: ON_HOST}).splitlines()
        self.assertEqual(said[0], "run_python: ")
        self.assertIn("NameError: name 'prime' is not defined", "\n".join(said))
        self.assertIn(os.uname().release, said)
        self.assertEqual(said[-1], "The sum is 328.")

    def test_32_evaluations(self) -> None:
        # The prepared sandbox is a machine. Without KVM its copies are not.
        changes = {'"prepared", memory="256m"': '"prepared", backend="host", user="root"'}
        said = self.run_example("forks", **{SLIM: f'"{IMAGE}", user="root"', **changes})
        self.assertIn("32 of 32 are right", said)
        images.remove("prepared")

    def test_a_session_that_is_gone_on_with(self) -> None:
        begin = self.run_example("tomorrow", "begin", **{SLIM: ON_HOST})
        self.assertEqual(begin, "kept as `session`\n")
        self.assertEqual([one.state for one in Sandbox.list()], ["paused"])
        self.assertEqual(self.run_example("tomorrow", "go-on"), "day 1: began\nday 2: went on\n")
        self.assertEqual([one.state for one in Sandbox.list()], ["paused"])
        self.run_example("tomorrow", "end")
        self.assertEqual(Sandbox.list(), [])

    def test_a_plot_is_copied_out(self) -> None:
        mount = f"type=image,source=matplotlib,target={self.matplotlib()}"
        with tempfile.TemporaryDirectory() as place:
            out = pathlib.Path(place, "out.png")
            said = self.run_example(
                "plot", str(out), **{'"plots"': f'{ON_HOST}, mount=["{mount}"]'}
            )
            self.assertEqual(said, f"546.0 mm in a year; the plot is {out}\n")
            png = out.read_bytes()
        self.assertEqual(png[:16], b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
        self.assertEqual(struct.unpack(">II", png[16:24]), (600, 400))
        self.assertGreater(len(png), 5000)

    def matplotlib(self) -> str:
        """Loads an image of matplotlib for the sample image's Python; returns where that looks for it."""
        with Sandbox.create(IMAGE, backend="host") as box:
            version = box.run_code("import sys; '%d.%d' % sys.version_info[:2]").results[0].text
        version = str(version).strip("'")
        cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
        place = cache / "micabox" / f"{MATPLOTLIB}-{version}"
        if not place.exists():
            uv = subprocess.check_output([REPOSITORY / "scripts" / "tool", "uv"], text=True).strip()
            new = place.with_name(f"{place.name}.new")
            shutil.rmtree(new, ignore_errors=True)
            command = [uv, "pip", "install", "--quiet", "--no-cache", "--only-binary", ":all:"]
            command += ["--python-platform", "x86_64-manylinux_2_28", "--python-version", version]
            subprocess.run([*command, "--target", new, MATPLOTLIB], check=True)
            for tests in list(new.rglob("tests")):
                shutil.rmtree(tests, ignore_errors=True)
            new.rename(place)
        images.load(folder(place), name="matplotlib")
        return f"/usr/local/lib/python{version}/dist-packages"

    def test_an_agent_in_a_shared_folder(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            project = pathlib.Path(place)
            subprocess.run(["git", "init", "--quiet", project], check=True)
            (project / "add.py").write_text("def add(a, b):\n    return a - b\n")
            (project / "test_add.py").write_text(
                "import unittest\nfrom add import add\n"
                "class T(unittest.TestCase):\n"
                "    def test(self): self.assertEqual(add(2, 2), 4)\n"
            )
            said = self.run_example("shared_folder", place).splitlines()
            self.assertEqual(
                said, ["add.py", "test_add.py", "FAILED (failures=1)", "OK", ".git is as it was"]
            )
            self.assertIn("a + b", (project / "add.py").read_text())
            note = project / "notes" / "agent.md"
            self.assertEqual(note.read_text(), "add.py subtracted.\n")
            self.assertEqual(note.stat().st_uid, os.getuid())
            status = ["git", "-C", place, "status", "--short"]
            self.assertIn("?? add.py", subprocess.check_output(status, text=True))
