"""A store of its own for an attempt, and mica run on it with limits of memory and time."""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

MEASURE = Path(__file__).resolve().parent / "measure.py"
NOBODY = 65534
MEBIBYTE = 1 << 20
# Bytes of a command's output that are looked at.
MOST_OUTPUT = 4 * MEBIBYTE
# Erases a line, moves up or down, hides or shows the cursor.
PROGRESS = re.compile(rb"\x1b\[(2K|[0-9]*[AB]|\?25[lh])")
# Address space of any mica that reads what is hostile: a machine has more.
ADDRESS_SPACE = 8 << 30


@dataclass
class Finished:
    """How a command ended."""

    arguments: list
    code: int
    output: bytes
    memory: int  # bytes, of the largest of its processes
    seconds: float

    @property
    def text(self):
        """What it said, on stdout and stderr."""
        return self.output.decode(errors="replace")

    def refused(self, *words):
        """It failed by itself, and said why."""
        where = f"{self.arguments}: exit code {self.code}: {self.text[-600:]}"
        assert 0 < self.code < 126, where
        assert not words or any(word in self.text for word in words), where
        return self

    def worked(self):
        """It did what it was asked for."""
        assert self.code == 0, f"{self.arguments}: exit code {self.code}: {self.text[-600:]}"
        return self

    def within(self, mebibytes):
        """It took no more memory than that."""
        assert self.memory <= mebibytes * MEBIBYTE, f"took {self.memory // MEBIBYTE} MiB"
        return self

    def harmless(self):
        """It said nothing that a terminal obeys, but for what moves bars of progress."""
        rest = PROGRESS.sub(b"", self.output)
        bad = {byte for byte in rest if byte < 32 or byte == 127} - set(b"\n\r\t")
        assert not bad, f"control characters {sorted(bad)} in {self.output[:300]!r}"
        assert not any(0x80 <= ord(letter) < 0xA0 for letter in self.text), "C1 controls"
        return self


class World:
    """A directory for everything, gone with the attempt."""

    def __init__(self, directory, mica):
        self.directory = directory
        self.program = mica
        self.store = directory / "store"
        self.settings = directory / "config.toml"
        self.settings.write_text("")
        self.environment = {}
        self.children = []
        self.cleanups = []

    def path(self, name):
        """A place of the attempt's own."""
        return self.directory / name

    def command(self, arguments):
        """The command line and environment of mica."""
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.directory),
            "MICABOX_HOME": str(self.store),
            "MICABOX_CONFIG": str(self.settings),
            **{name: value for name, value in os.environ.items() if name == "MICABOX_GUEST"},
            **self.environment,
        }
        return [str(self.program), *map(str, arguments)], environment

    def mica(self, *arguments, seconds=60, space=ADDRESS_SPACE, tty=False):
        """Runs mica to its end, which must come."""
        command, environment = self.command(arguments)
        return execute(command, environment, seconds, space, tty)

    def start(self, *arguments):
        """Starts mica and leaves it running, its output in a pipe."""
        command, environment = self.command(arguments)
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.children.append(child)
        return child

    def as_nobody(self, *command, seconds=20):
        """Runs a command as another user of the machine."""
        drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        return execute([*drop, *map(str, command)], {"PATH": "/usr/bin:/bin"}, seconds, None)

    def stored(self):
        """Bytes on the disk that the store takes."""
        files = (path for path in self.store.rglob("*") if path.is_file())
        return sum(path.lstat().st_blocks * 512 for path in files)

    def end(self):
        """Ends what was started."""
        for cleanup in self.cleanups:
            with contextlib.suppress(Exception):
                cleanup()
        for child in self.children:
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(20)
                except subprocess.TimeoutExpired:
                    child.kill()
            child.stdout.close()


def execute(command, environment, seconds, space, tty=False):
    """Runs a command; killed, and a failure, if it takes longer."""
    report, told = os.pipe()
    near, far = pty.openpty() if tty else os.pipe()
    start = time.monotonic()
    child = subprocess.Popen(
        [
            *(sys.executable, "-SE", str(MEASURE), str(told)),
            *("prlimit", "--core=0", f"--as={space or 'unlimited'}"),
            *command,
        ],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=far,
        stderr=far,
        pass_fds=[told],
        start_new_session=True,
    )
    os.close(far)
    os.close(told)
    kept = [b"", 0]

    def listen():
        with contextlib.suppress(OSError):  # a terminal's end is an error
            while piece := os.read(near, 1 << 16):
                kept[0] += piece[: max(0, MOST_OUTPUT - kept[1])]
                kept[1] += len(piece)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    late = threading.Timer(seconds, lambda: os.killpg(child.pid, signal.SIGKILL))
    late.start()
    child.wait()
    late.cancel()
    took = time.monotonic() - start
    # What it left behind may hold the other end.
    listener.join(2)
    with open(report) as file:
        words = file.read().split()
    assert took < seconds and words, f"{command}: did not end in {seconds} seconds"
    return Finished(
        arguments=command[1:],
        code=int(words[0]),
        output=kept[0],
        memory=int(words[1]) * 1024,
        seconds=took,
    )


def wait_until(what, condition, seconds=300):
    """Waits for something to become true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        # Sleep: the interval between questions.
        time.sleep(0.05)


def exists(path):
    """Whether anything is at a path, a dangling link included."""
    return os.path.lexists(Path(path))
