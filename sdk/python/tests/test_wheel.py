"""A wheel, installed apart from the repository."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import unittest

from .support import HOME, REPOSITORY, mica

PROGRAM = """
from micabox import Sandbox
with Sandbox.create("sample", backend="host") as box:
    print(box.commands.run("echo from the wheel").stdout, end="")
"""


class WheelTest(unittest.TestCase):
    def test_it_has_the_version_of_mica(self) -> None:
        project = (REPOSITORY / "sdk" / "python" / "pyproject.toml").read_text()
        version = re.search('^version = "(.*)"$', project, re.MULTILINE)
        assert version is not None
        self.assertEqual(mica("--version").split()[1], version[1])

    def test_it_carries_all_that_a_sandbox_needs(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            packed = [sys.executable, REPOSITORY / "scripts" / "pack" / "wheel.py"]
            files = [os.environ["MICABOX_MICA"], os.environ["MICABOX_GUEST"], place]
            wheel, size = subprocess.check_output([*packed, *files], text=True).split()
            # Of a build for tests, whose own crates are not optimized.
            self.assertLess(int(size), 32 << 20)
            site = pathlib.Path(place, "site")
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
            pip += ["--disable-pip-version-check", "--root-user-action=ignore"]
            subprocess.run([*pip, "--target", site, wheel], check=True)
            environment = {
                "HOME": place,
                "PATH": "/usr/bin:/bin",
                "PYTHONPATH": str(site),
                "MICABOX_HOME": str(HOME),
            }
            call = [sys.executable, "-c", PROGRAM]
            said: list[str] = []

            def run() -> None:
                said.append(subprocess.check_output(call, env=environment, cwd=place, text=True))

            # The first ones unpack the guest's files at the same time.
            threads = [threading.Thread(target=run) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(said, ["from the wheel\n"] * 3)
            (guest,) = pathlib.Path(place, ".cache", "micabox").iterdir()
            for name in ("vmlinux", "initrd.cpio"):
                original = pathlib.Path(os.environ["MICABOX_GUEST"], name).read_bytes()
                self.assertEqual((guest / name).read_bytes(), original)
            program = site / "bin" / "mica"
            listed = subprocess.check_output([program, "images"], env=environment, text=True)
            self.assertIn("sample", listed)
