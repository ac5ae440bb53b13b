"""`mica serve --stdio`: one process for each process of Python, made when it is first needed.

Its sandboxes end when its stdin does: at exit, and when this process dies. A forked child closes its copies
of the pipes, so that it does not keep them alive, and makes a process of its own.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from micabox import program
from micabox.errors import (
    DisconnectedException,
    HostException,
    ProtocolException,
    SandboxNotRunningException,
)
from micabox.io import sockets
from micabox.protocol.frames import PREAMBLE, Decoder, Frame, encode

# Only keeps what it gets.
Receiver = Callable[["list[Frame] | None"], None]

_RECEIVE = 256 << 10
# How long its sandboxes may take to end.
_GRACE = 30.0


def ended() -> DisconnectedException:
    """What is raised when it has ended."""
    return DisconnectedException(
        "`mica serve` ended, and its sandboxes with it", kind="disconnected"
    )


class Server:
    """The process, and those that wait for its answers."""

    def __init__(self) -> None:
        command = [program.mica(), "serve", "--stdio"]
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env=program.environment(),
            )
        except OSError as error:
            raise HostException(f"cannot start `{command[0]}`: {error}", kind="host") from None
        assert self._process.stdin and self._process.stdout
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._receivers: dict[int, Receiver] = {}
        # Requests that were given up, and are not answered yet.
        self._undone: set[int] = set()
        self._last = 0
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._decoder = Decoder()
        self._reader: threading.Thread | None = None
        self.is_over = False
        self.home = ""
        try:
            try:
                self._stdin.write(PREAMBLE)
            except OSError:
                pass  # what it has said before its end says more
            self.home = self._hello()
        except ProtocolException:
            self.end()
            raise
        except (OSError, DisconnectedException):
            self.end()
            raise HostException(
                f"`{command[0]} serve` ended at once", kind="host", hint="its stderr says why"
            ) from None
        self._reader = threading.Thread(target=self._read, name="mica serve", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process's ID."""
        return self._process.pid

    @property
    def has_died(self) -> bool:
        """Whether the process has ended, which its thread may not have noticed yet."""
        return self.is_over or self._process.poll() is not None

    def _hello(self) -> str:
        while True:
            data = os.read(self._stdout.fileno(), _RECEIVE)
            if not data:
                raise ended()
            for frame in self._decoder.feed(data):
                return str(frame.message().get("home") or "")

    def _read(self) -> None:
        try:
            while data := os.read(self._stdout.fileno(), _RECEIVE):
                by_number: dict[int, list[Frame]] = {}
                for frame in self._decoder.feed(data):
                    by_number.setdefault(frame.number, []).append(frame)
                for number, frames in by_number.items():
                    # Under the lock, so that all frames until `undo` are with the receiver.
                    with self._lock:
                        if receiver := self._receivers.get(number):
                            receiver(frames)
                        is_undone = number in self._undone
                    if is_undone:
                        self.undone(number, frames)
        except (OSError, ProtocolException):
            pass  # as if it had ended
        finally:
            with self._lock:
                self.is_over = True
                receivers = list(self._receivers.values())
                self._receivers.clear()
                self._undone.clear()
            for receiver in receivers:
                receiver(None)

    def open(self, receiver: Receiver) -> int:
        """A number for a request; its frames go to the receiver, `None` at the end."""
        with self._lock:
            if self.is_over:
                raise ended()
            self._last = self._last % 0xFFFF_FFFF + 1
            while self._last in self._receivers or self._last in self._undone:
                self._last = self._last % 0xFFFF_FFFF + 1
            self._receivers[self._last] = receiver
            return self._last

    def close(self, number: int) -> None:
        """Nothing waits for the answers of this request any more."""
        with self._lock:
            self._receivers.pop(number, None)
            self._undone.discard(number)

    def send(self, data: bytes) -> None:
        """Sends whole frames."""
        left = memoryview(data)
        with self._sending:
            try:
                while left:
                    left = left[self._stdin.write(left) or 0 :]
            except (OSError, ValueError):
                raise ended() from None

    def send_last(self, number: int, data: bytes) -> None:
        """Sends whole frames of a request that nothing waits for any more. Never raises."""
        self.close(number)
        try:
            self.send(data)
        except DisconnectedException:
            pass  # it is over

    def undo(self, number: int) -> None:
        """Nothing waits for the answer of this request any more: it is given up, or else sandboxes that it
        makes are killed."""
        with self._lock:
            if self._receivers.pop(number, None) is None:
                return
            self._undone.add(number)
        try:
            self.send(encode(number, {"type": "cancel"}))
        except DisconnectedException:
            pass  # it is over

    def undone(self, number: int, frames: list[Frame]) -> None:
        """Kills the sandboxes in an answer."""
        for frame in frames:
            message = frame.message()
            if message.get("type") in ("progress", "notice"):
                continue  # the answer is yet to come
            self.close(number)
            sandboxes: list[dict[str, Any]] = message.get("sandboxes") or []
            for made in sandboxes:
                try:
                    with sockets.connect(str(made["directory"])) as owner:
                        owner.sendall(encode(1, {"type": "kill"}))
                        while owner.recv(_RECEIVE):
                            pass
                except (OSError, SandboxNotRunningException):
                    pass  # it has ended

    def end(self) -> None:
        """Ends it and its sandboxes, and waits for that."""
        # A thread may hold the lock for ever, if the process was stopped.
        if self._sending.acquire(timeout=_GRACE):
            self._stdin.close()
            self._sending.release()
        else:
            self._process.kill()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._reader:
            self._reader.join()
        self._stdout.close()

    def forget(self) -> None:
        """Closes a forked child's copies of the pipes; the process is the parent's."""
        self._process.returncode = 0  # of no child of ours
        # Another thread may have held them.
        self._lock, self._sending = threading.Lock(), threading.Lock()
        for pipe in (self._stdin, self._stdout):
            try:
                pipe.close()
            except OSError:
                pass


class _Current:
    """The process that this process has."""

    server: Server | None = None
    lock: Any = threading.Lock()


def running() -> Server:
    """This process's `mica serve`, which is started if there is none."""
    with _Current.lock:
        # What is asked of one that has died was asked of none.
        if _Current.server and _Current.server.has_died:
            _Current.server.end()
            _Current.server = None
        if _Current.server is None:
            _Current.server = Server()
        return _Current.server


def _end() -> None:
    with _Current.lock:
        current, _Current.server = _Current.server, None
    if current:
        current.end()


def _forget() -> None:
    current, _Current.server = _Current.server, None
    _Current.lock = threading.Lock()
    if current:
        current.forget()


atexit.register(_end)
os.register_at_fork(
    before=lambda: _Current.lock.acquire(),
    after_in_parent=lambda: _Current.lock.release(),
    after_in_child=_forget,
)
