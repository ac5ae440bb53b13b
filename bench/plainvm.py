"""The peers in a VM: QEMU by hand, the image's tree as ext4 on virtio-blk or by virtio-fs.

Everything but the root is what `mica run` uses: the same QEMU, machine, processor,
accelerator, memory and kernel, copied from the command line of a running one.
"""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

VIRTIOFSD = pathlib.Path("/usr/lib/qemu/virtiofsd")

# The guest's side: what every init does, then the program; its standard output is the
# port's. PID 1 ending is a panic, panic=-1 a reset, -no-reboot the end of QEMU.
INIT = """#!/usr/bin/python3 -I
import ctypes, glob, os, subprocess
libc = ctypes.CDLL(None, use_errno=True)
for kind, target in (
    ("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/dev/shm"),
    ("tmpfs", "/run"),
):
    os.makedirs(target, exist_ok=True)
    if libc.mount(kind.encode(), target.encode(), kind.encode(), 0, None):
        raise OSError(ctypes.get_errno(), f"mounting {kind} on {target}")
environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root"}
(port,) = glob.glob("/dev/vport*")
with open("/bench/workloads.py") as source, open(port, "wb") as out:
    words = ["/usr/bin/python3", "-", "run", *os.environ["WORKLOAD"].split(",")]
    subprocess.run(words, stdin=source, stdout=out, env=environment)
"""


class Failed(Exception):
    """A peer's VM gave no result; the message has the end of its console."""


@dataclass
class Machine:
    """What `mica run` starts QEMU with, its storage and channels apart."""

    program: str
    arguments: list[str]
    words: list[str]  # of the kernel's command line
    memory_mib: int

    @property
    def kernel(self) -> str:
        return self.arguments[self.arguments.index("-kernel") + 1]

    def described(self) -> dict:
        """For the results: without this machine's paths."""
        arguments = [
            os.path.basename(word) if word == self.kernel else word for word in self.arguments
        ]
        return {
            "arguments": arguments,
            "kernel_words": self.words,
            "memory_mib": self.memory_mib,
        }

    @classmethod
    def observed(cls, pid: int) -> "Machine":
        """From a QEMU process that `mica` started."""
        raw = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
        program, *rest = (word.decode() for word in raw.rstrip(b"\0").split(b"\0"))
        machine = cls(program, [], [], 0)
        words = iter(rest)
        for option in words:
            if option in ("-no-user-config", "-nodefaults", "-no-reboot"):
                machine.arguments.append(option)
                continue
            value = next(words)
            if option == "-append":
                machine.words = [word for word in value.split() if not word.startswith("mica")]
            elif option == "-m":
                size = value.split(",")[0].removeprefix("size=")
                machine.memory_mib = int(size.removesuffix("M"))
            elif option == "-kernel":
                # A descriptor of that process.
                kernel = os.readlink(value.replace("/self/", f"/{pid}/"))
                machine.arguments += [option, kernel]
            elif shared(option, value):
                machine.arguments += [option, anywhere(value) if option == "-device" else value]
        return machine


def shared(option: str, value: str) -> bool:
    """Whether a peer's machine has this option too."""
    if option in ("-sandbox", "-display", "-machine", "-accel", "-cpu", "-smp"):
        return True
    if option == "-object":
        return json.loads(value)["qom-type"].startswith("rng")
    if option == "-device":
        return json.loads(value)["driver"] in ("virtio-rng-pci", "virtio-serial-pci")
    return False


def anywhere(device: str) -> str:
    """A device without its address: a peer has other devices beside it."""
    fields = json.loads(device)
    return json.dumps(
        {name: fields[name] for name in fields if name not in ("addr", "multifunction")}
    )


@dataclass
class Root:
    """A root directory for a guest: QEMU's options and the kernel's words for it."""

    options: list[str]
    words: list[str]


def make_ext4(tree: pathlib.Path, image: pathlib.Path, spare_mib: int = 512) -> None:
    """A raw ext4 of `tree` with room to write. Nothing is left to a lazy kernel thread."""
    used = int(subprocess.check_output(["du", "-sm", tree]).split()[0])
    part = image.with_suffix(".part")
    part.unlink(missing_ok=True)
    size = f"{used + used // 8 + spare_mib}M"
    options = ["-E", "lazy_itable_init=0,lazy_journal_init=0", "-d", tree]
    subprocess.run(["mke2fs", "-q", "-t", "ext4", *options, part, size], check=True)
    part.replace(image)


def device(**fields: str | int) -> list[str]:
    """A device as QEMU's options. In JSON, for QEMU makes those after all that aren't."""
    if fields["driver"].startswith("virtio-"):
        fields["disable-legacy"] = "on"
    return ["-device", json.dumps(fields)]


@contextmanager
def ext4(image: pathlib.Path, memory_mib: int) -> Iterator[Root]:
    """The ext4 `image` on virtio-blk, with the host's page cache; writes are thrown away."""
    del memory_mib
    drive = f"file={image},format=raw,if=none,id=root,cache=writeback,snapshot=on"
    options = ["-drive", drive, *device(driver="virtio-blk-pci", drive="root")]
    yield Root(options, ["root=/dev/vda", "rootfstype=ext4", "rw"])


@contextmanager
def virtiofs(tree: pathlib.Path, memory_mib: int) -> Iterator[Root]:
    """A fresh copy of `tree` shared by virtio-fs with virtiofsd's defaults."""
    with copied(tree) as copy, tempfile.TemporaryDirectory() as directory:
        socket = pathlib.Path(directory, "socket")
        command = [VIRTIOFSD, f"--socket-path={socket}", "-o", f"source={copy}"]
        with pathlib.Path(directory, "log").open("wb") as log:
            daemon = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_for(socket, daemon)
            ram = f"memory-backend-memfd,id=ram,size={memory_mib}M,share=on"
            options = ["-object", ram, "-machine", "memory-backend=ram"]
            options += ["-chardev", f"socket,id=share,path={socket}"]
            options += device(driver="vhost-user-fs-pci", chardev="share", tag="root")
            yield Root(options, ["root=root", "rootfstype=virtiofs", "rw"])
        finally:
            daemon.terminate()
            daemon.wait()


@contextmanager
def copied(tree: pathlib.Path) -> Iterator[pathlib.Path]:
    """A copy of `tree` on the same filesystem."""
    with tempfile.TemporaryDirectory(dir=tree.parent) as directory:
        copy = pathlib.Path(directory, "root")
        subprocess.run(["cp", "-a", tree, copy], check=True)
        yield copy


def wait_for(socket: pathlib.Path, daemon: subprocess.Popen) -> None:
    while not socket.exists():
        if daemon.poll() is not None:
            raise Failed(f"{VIRTIOFSD} ended with {daemon.returncode}")
        time.sleep(0.01)


def workload(
    machine: Machine, root: Root, name: str, iterations: int, limit: float, *options: str
) -> dict:
    """Runs a workload in a fresh VM and returns what it printed."""
    with tempfile.TemporaryDirectory() as directory:
        console, port = pathlib.Path(directory, "console"), pathlib.Path(directory, "port")
        channels = ["-serial", f"file:{console}", "-chardev", f"file,id=result,path={port}"]
        channels += device(driver="virtserialport", nr=1, chardev="result", name="result")
        arguments = ",".join([name, str(iterations), *options])
        words = ["init=/bench/init", f"WORKLOAD={arguments}"]
        command = command_line(machine, root, channels, words)
        try:
            subprocess.run(command, check=True, timeout=limit, capture_output=True)
            return json.loads(port.read_text())
        except (subprocess.SubprocessError, ValueError) as error:
            detail = getattr(error, "stderr", None) or b""
            tail = console.read_text(errors="replace")[-2000:] if console.exists() else ""
            raise Failed(f"{name}: {error}\n{detail.decode(errors='replace')}\n{tail}") from error


def echo_command(machine: Machine, root: Root, text: str) -> list[str]:
    """QEMU with a guest whose init is `echo`, its output on ours."""
    words = ["init=/bin/echo", "--", text]
    return command_line(machine, root, ["-serial", "stdio"], words)


def command_line(machine: Machine, root: Root, channels: list[str], words: list[str]) -> list[str]:
    memory = ["-m", f"{machine.memory_mib}M"]
    append = ["-append", " ".join([*machine.words, *root.words, *words])]
    return [machine.program, *machine.arguments, *memory, *append, *channels, *root.options]


def prepare_tree(tree: pathlib.Path, workloads: pathlib.Path) -> None:
    """Puts the peers' init and the workloads into an unpacked image."""
    place = tree / "bench"
    place.mkdir(exist_ok=True)
    shutil.copy(workloads, place / "workloads.py")
    init = place / "init"
    init.write_text(INIT)
    init.chmod(0o755)
    # What a kernel without an initrd needs before /dev is mounted.
    console = tree / "dev" / "console"
    if not console.exists():
        console.parent.mkdir(exist_ok=True)
        os.mknod(console, 0o600 | 0o020000, os.makedev(5, 1))
