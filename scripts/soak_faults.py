"""Faults of `scripts/soak`: a disk that fills up, a registry that dies, guests that send garbage."""

import contextlib
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE = 300  # seconds
SETTINGS = "[transfer]\nattempts = 2\nconnect-timeout = 2\nidle-timeout = 2\nlongest-pause = 1\n"


class Repeated:
    """Something that is broken and mended again and again, until the end."""

    def __init__(self) -> None:
        self.ends, self.count, self.problem = threading.Event(), 0, None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        try:
            while not self.ends.wait(random.uniform(5, 20)):
                self.break_it()
                self.count += 1
                self.ends.wait(random.uniform(1, 5))
                self.mend()
        except Exception as problem:  # noqa: BLE001
            # Raised where this is ended.
            self.problem = problem

    def end(self) -> None:
        self.ends.set()
        self.thread.join()
        if self.problem:
            raise self.problem


class FullDisk(Repeated):
    """A filesystem in memory, mounted on the store, that is full now and then. Needs root."""

    def __init__(self, store: pathlib.Path, size: str) -> None:
        super().__init__()
        self.store = store
        store.mkdir()
        options = f"size={size},mode=0700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "soak", store], check=True)

    def break_it(self) -> None:
        with contextlib.suppress(OSError), (self.store / "filler").open("wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass

    def mend(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self.store / "filler").unlink()

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", self.store], check=True)


class Registry(Repeated):
    """Debian's docker-registry, killed now and then."""

    def __init__(self, place: pathlib.Path) -> None:
        super().__init__()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        place.mkdir()
        self.settings = place / "config.toml"
        self.settings.write_text(SETTINGS)
        self.config = place / "registry.yml"
        self.config.write_text(
            f"version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\n"
            f"storage: {{filesystem: {{rootdirectory: {place}/data}}}}\n"
            f"http: {{addr: 127.0.0.1:{self.port}}}\n"
        )
        self.process = None
        self.mend()

    @property
    def image(self) -> str:
        return f"localhost:{self.port}/box:latest"

    def mend(self) -> None:
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(["docker-registry", "serve", self.config], **silent)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            # Sleep: the interval between attempts to connect.
            time.sleep(0.1)
        raise RuntimeError("docker-registry does not listen")

    def break_it(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        try:
            super().end()
        finally:
            self.break_it()


def garbage(place: pathlib.Path, guest: pathlib.Path) -> pathlib.Path:
    """A guest's files in which the kernel is ours and the agent sends garbage."""
    place.mkdir()
    (place / "none").mkdir()
    shutil.copy(guest / "vmlinux", place)
    program = place / "garbage"
    subprocess.run(["gcc", "-static", "-O1", "-o", program, HERE / "garbage.c"], check=True)
    with (place / "initrd.cpio").open("wb") as file:
        pack = [sys.executable, HERE / "initrd.py", program, place / "none"]
        subprocess.run(pack, stdout=file, check=True)
    return place


def possible(guest: pathlib.Path) -> dict[str, str]:
    """The faults, each with why it is not possible here, or nothing."""
    lacks = lambda program: "" if shutil.which(program) else f"{program} is not installed"
    return {
        "disk": "" if os.geteuid() == 0 else "only root mounts a filesystem",
        "registry": lacks("docker-registry"),
        "guest": lacks("gcc") or ("" if guest.exists() else f"no {guest}"),
    }
