"""Hostile guests: what root inside of a machine, and a machine's process, can reach."""

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import disks
import oci
from attempts import NotHereError, attempt
from images import ESCAPES
from world import MEBIBYTE, wait_until

TOP = Path(__file__).resolve().parent.parent.parent
SECRET = "a-secret-of-the-callers"
# Longer than a boot takes under emulation on a busy machine.
BOOT = 90


def guest_files():
    """Where the guest's kernel and agent are."""
    place = Path(os.environ.get("MICABOX_GUEST", TOP / "target" / "guest"))
    if not (place / "initrd.cpio").exists():
        raise NotHereError("no guest is built")
    return place


def box(world):
    """A store with an image that runs."""
    world.environment["MICABOX_GUEST"] = str(guest_files())
    oci.load_box(world)


def inside(world, script, *options, code=None):
    """Runs a script as root of a sandbox."""
    run = ("run", "--rm", *options, "box", "sh", "-c", script)
    finished = world.mica(*run, seconds=BOOT, space=None)
    assert code is None or finished.code == code, f"{finished.code}: {finished.text[-600:]}"
    return finished


class Server:
    """Counts connections to all of this machine's addresses."""

    def __init__(self, world):
        self.socket = socket.create_server(("0.0.0.0", 0))
        self.port = self.socket.getsockname()[1]
        self.count = 0
        threading.Thread(target=self.serve, daemon=True).start()
        world.cleanups.append(self.socket.close)

    def serve(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.count += 1
            connection.close()


def own_addresses():
    """This machine's IPv4 addresses."""
    listing = subprocess.run(["ip", "-json", "-4", "addr"], capture_output=True, check=True)
    links = json.loads(listing.stdout)
    return [address["local"] for link in links for address in link["addr_info"]]


@attempt(
    "guest",
    "connects to each of the host's own addresses, the gateway and 169.254.169.254",
    "refused; no connection arrived",
    "own, loopback and link-local addresses are closed unless a rule for the address opens them",
)
def a_guest_that_connects_to_the_host(world):
    box(world)
    server = Server(world)
    for options in ([], ["--net-allow", "0.0.0.0/0"]):
        places = [*own_addresses(), "10.213.9.1", "169.254.169.254", "0.0.0.0"]
        tries = "; ".join(
            f"nc -w 2 {place} {server.port} </dev/null && echo reached {place}" for place in places
        )
        finished = inside(world, f"{tries}; true", *options, code=0)
        reached = [line for line in finished.text.splitlines() if line.startswith("reached")]
        # What the guest calls its own loopback interface is its own.
        assert server.count == 0, f"{server.count} connections: {reached}"


@attempt(
    "guest",
    "writes to the device that its image is",
    "the image's files on the host are as they were",
    "files opened read-only, mapped read-only, read-only memory slots",
)
def a_guest_that_writes_to_its_image(world):
    box(world)
    # Root makes the nodes that its /dev does not have.
    write = (
        "for d in /sys/class/block/*; do n=$(cat $d/dev); m=${n#*:}; "
        "busybox mknod /tmp/$n b ${n%:*} $m && dd if=/dev/zero of=/tmp/$n bs=4k count=64 && "
        "echo wrote to ${d##*/}; echo at ${d##*/}; done; sync; true"
    )
    assert "\nat " in "\n" + inside(world, write).text, "it has no device"
    world.mica("store", "fsck").worked()
    inside(world, "true", code=0)


@attempt(
    "guest",
    "fills its disk of 64 MiB",
    "an error inside; the host's file is no larger",
    "the disk's size; RLIMIT_FSIZE of the machine's process",
)
def a_guest_that_fills_its_disk(world):
    box(world)
    before = world.stored()
    fill = "dd if=/dev/zero of=/fill bs=65536; dd if=/dev/zero of=/fill2 bs=65536; true"
    run = ("run", "--name", "full", "--upper", "disk:64m", "box", "sh", "-c", fill)
    world.mica(*run, seconds=BOOT, space=None)
    taken = world.stored() - before
    assert 32 * MEBIBYTE < taken < 80 * MEBIBYTE, f"{taken // MEBIBYTE} MiB"


@attempt(
    "guest",
    "1,000 nested directories of 250-byte names on its disk, then `mica diff` and `mica commit`",
    "refused or done, with less than 100 MiB of memory",
    "budgets of the readers, which run in the jail",
)
def a_guest_that_nests_directories(world):
    box(world)
    name = "n" * 250
    run = ("run", "--name", "deep", "--upper", "disk:128m", "box", "sh", "-c", "echo x > /root/x")
    world.mica(*run, seconds=BOOT, space=None).worked()
    # What a guest's kernel can write; mkdir is slower under emulation.
    (disk,) = (world.store / "sandboxes").glob("*/upper.ext4")
    disks.debugfs(disk, "cd /root/root", *[f"mkdir {name}", f"cd {name}"] * 1000)
    world.mica("diff", "deep", seconds=BOOT).within(100)
    world.mica("commit", "deep", "deep:1", seconds=BOOT).within(100)


@attempt(
    "guest",
    "an agent that says what it likes: escape sequences in each of its strings",
    "shown as text",
    "what an agent says is parsed as foreign bytes; one filter where text leaves mica",
)
def an_agent_of_its_own(world):
    box(world)
    place = world.path("guest")
    place.mkdir()
    for file in guest_files().iterdir():
        if file.name != "initrd.cpio":
            shutil.copy(file, place)
    files = world.path("files")
    files.mkdir()

    def text(value):
        return bytes([len(value)]) + value

    evil = ESCAPES.encode()
    # ToHost::BootFailed: step, target, errno, detail and part (crates/wire).
    body = bytes([2]) + text(evil) + text(evil) + b"\0" + text(evil) + b"\1"
    source = (TOP / "crates/wire/src/lib.rs").read_text()
    version = int(source.split("pub const VERSION: u32 = ")[1].split(";")[0])
    said = b"MICABOX\n" + struct.pack("<I", version) + struct.pack("<I", len(body)) + body
    (files / "said").write_bytes(said)
    (files / "busybox").write_bytes(Path("/bin/busybox").read_bytes())
    script = world.path("init")
    script.write_text(
        "#!/files/busybox sh\n"
        "b=/files/busybox\n"
        "$b mkdir -p /dev /sys; $b mount -t devtmpfs x /dev; $b mount -t sysfs x /sys\n"
        "for port in /sys/class/virtio-ports/*; do\n"
        '    [ "$($b cat $port/name)" = micabox.agent.0 ] || continue\n'
        "    $b cat /files/said > /dev/${port##*/}\n"
        "done\n"
        "$b sleep 5; $b reboot -f\n"
    )
    packed = subprocess.run(
        [sys.executable, TOP / "scripts" / "initrd.py", script, files],
        capture_output=True,
        check=True,
    )
    # Files are made readable there; the shell must be executable as well.
    (place / "initrd.cpio").write_bytes(executable(packed.stdout, b"files/busybox"))
    world.environment["MICABOX_GUEST"] = str(place)
    for tty in (False, True):
        run = ("run", "--rm", "--cold", "box", "true")
        finished = world.mica(*run, seconds=BOOT, space=None, tty=tty)
        finished.harmless().refused("31m", "taken")


def executable(cpio, name):
    """A newc archive in which a file may be executed."""
    at = cpio.index(name + b"\0") - 110
    assert cpio[at : at + 6] == b"070701"
    return cpio[: at + 14] + b"%08X" % 0o100755 + cpio[at + 22 :]


def machine_processes(world):
    """Processes below mica that are a machine: their numbers."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        is_worker = b"--micabox-worker" in line and b"--micabox-worker\0owner" not in line
        is_machine = b"qemu-system" in line.split(b"\0")[0] or is_worker
        if is_machine and descends(int(entry.name), {child.pid for child in world.children}):
            found.append(int(entry.name))
    return found


def descends(pid, ancestors):
    """Whether a process is below one of these."""
    while pid > 1:
        if pid in ancestors:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            return False
    return False


@attempt(
    "machine's process",
    "taken over: reads mica's environment, root's files, other processes, the network",
    "another user without capabilities, environment, files, processes or network",
    "an empty environment; the jail, around QEMU as well",
)
def a_machine_that_is_taken_over(world):
    box(world)
    world.environment["AWS_SECRET_ACCESS_KEY"] = SECRET
    world.start("run", "--rm", "box", "sleep", "60")
    wait_until("the machine runs", lambda: machine_processes(world), BOOT)
    # Until it is in its jail: before that it runs nothing of the guest's.
    wait_until("the sandbox runs", lambda: "Up " in world.mica("ps").text, BOOT)
    jailed = 0
    for pid in machine_processes(world):
        place = Path(f"/proc/{pid}")
        environment = (place / "environ").read_bytes()
        assert SECRET.encode() not in environment, f"{environment[:200]!r}"
        status = dict(line.split(":\t", 1) for line in (place / "status").read_text().splitlines())
        assert status["NoNewPrivs"] == "1", "it may gain privileges"
        children = (place / "task" / str(pid) / "children").read_text().split()
        if children:
            continue  # the keeper, which only waits
        jailed += 1
        assert "0" not in status["Uid"].split(), f"it is root: {status['Uid']}"
        for kind in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
            held = int(status[kind], 16)
            own_namespace = os.readlink(place / "ns/user") != os.readlink("/proc/self/ns/user")
            assert held == 0 or own_namespace, f"{kind} {held:x}"
        is_worker = b"--micabox-worker" in (place / "cmdline").read_bytes()
        for kind in ("mnt", "net", "ipc", "uts", "user", *["pid"] * is_worker):
            theirs = os.readlink(place / "ns" / kind)
            assert theirs != os.readlink(f"/proc/self/ns/{kind}"), f"our {kind} namespace"
        # QEMU sees programs and libraries; a worker of ours nothing.
        for hidden in ("root", "home", "etc/passwd", "etc/shadow", "dev/vda", "run", "var"):
            assert not (place / "root" / hidden).exists(), f"it sees /{hidden}"
        assert not is_worker or not any((place / "root").iterdir()), "it sees files"
        assert int(status["Seccomp"]) == 2, "no filter of system calls"
    assert jailed, "no machine"


@attempt(
    "sandbox on the host's kernel",
    "locks and watches the host's device nodes, and sets their times",
    "nodes of its own; the host's are as they were",
    "its keeper makes nodes on a filesystem of the sandbox's own",
)
def a_container_at_the_hosts_nodes(world):
    box(world)
    names = ("null", "zero", "full", "random", "urandom", "tty")
    before = {name: os.stat(f"/dev/{name}") for name in names}
    script = "cd /dev; touch full; stat -c '%n %d %i' " + " ".join(names)
    finished = inside(world, script, "--backend", "host", "--net", "none", "--quiet", code=0)
    seen = [line.split() for line in finished.text.splitlines()]
    assert len(seen) == len(names), finished.text
    for name, device, inode in seen:
        host = before[name]
        assert (int(device), int(inode)) != (host.st_dev, host.st_ino), f"the host's /dev/{name}"
    assert os.stat("/dev/full").st_mtime == before["full"].st_mtime, "changed the host's times"


@attempt(
    "sandbox on the host's kernel",
    "reads its caller's environment in the processes that keep it",
    "none of them has it",
    "an empty environment, also of what was forked and not executed",
)
def a_containers_keeper_that_is_taken_over(world):
    box(world)
    world.environment["AWS_SECRET_ACCESS_KEY"] = SECRET
    words = ("--backend", "host", "--net", "none", "--quiet", "--name", "it")
    world.mica("run", "-d", "--rm", *words, "box", "sleep", "60", space=None).worked()
    names, found = {b"mica-owner", b"mica-lower"}, set()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            line = (place / "cmdline").read_bytes().split(b"\0")[0]
            environment = (place / "environ").read_bytes()
        except OSError:
            continue
        if line.startswith(b"mica-"):
            found.add(line)
            assert SECRET.encode() not in environment, f"{line}: {environment[:200]!r}"
    assert found >= names and len(found) > len(names), found
    world.mica("kill", "it").worked()


@attempt(
    "network neighbour",
    "connects to a published port from elsewhere",
    "refused; it listens on the loopback interface alone",
    "`-p` means 127.0.0.1 unless an address is given",
)
def a_neighbour_at_a_published_port(world):
    box(world)
    free = socket.create_server(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()
    world.start("run", "--rm", "-p", f"{port}:80", "box", "sleep", "60")
    wait_until("the sandbox runs", lambda: "Up " in world.mica("ps").text, BOOT)
    for address in own_addresses():
        if address.startswith("127."):
            continue
        assert not accepts(address, port), f"{address}:{port} answers"
    assert accepts("127.0.0.1", port), "the published port does not answer"


def accepts(address, port):
    """Whether a connection is accepted, even if it is then reset for want of a server inside."""
    try:
        socket.create_connection((address, port), 5).close()
    except ConnectionResetError:
        return True
    except OSError:
        return False
    return True
