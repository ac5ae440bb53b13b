"""Runs a program beside `mica serve --e2b`, with the variables that this prints: run.py PROGRAM [ARGUMENT...]

A Python file is run by this Python.
"""

import os
import signal
import subprocess
import sys

# Seconds that only a hang takes.
PATIENCE = 300


class Server:
    """A server, of which several may follow each other at one address."""

    def __init__(self, *flags: str, address: str = "127.0.0.1:0") -> None:
        command = [os.environ["MICA"], "serve", "--e2b", "--listen", address, *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        words = (self.process.stdout.readline().split() for _ in range(3))
        self.variables = dict(word.split("=", 1) for _, word in words)

    @property
    def address(self) -> str:
        return self.variables["E2B_API_URL"].removeprefix("http://")

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)
        assert self.process.stdout
        self.process.stdout.close()


# Templates' names that E2B's clients use, for the image that the tests have.
FLAGS = [
    "--with=backend=host",
    "--template=base=sample",
    "--template=code-interpreter-v1=sample",
]


def main() -> int:
    server = Server(*FLAGS)
    words = sys.argv[1:]
    if words[0].endswith(".py"):
        words.insert(0, sys.executable)
    try:
        return subprocess.call(
            words, env=os.environ | server.variables | {"PATIENCE": str(PATIENCE)}
        )
    finally:
        server.end()


if __name__ == "__main__":
    sys.exit(main())
