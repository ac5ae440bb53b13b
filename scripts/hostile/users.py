"""Another user of the machine, beside root's mica."""

import os
import shlex
import stat
import subprocess
from pathlib import Path

import guests
import oci
from attempts import attempt
from world import NOBODY, execute

TRY = """
import fcntl, os, sys
failures = 0
for path in sys.argv[1:]:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:
        continue
    except OSError:
        continue
    failures += 1
    print("opened", path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("locked", path)
    except OSError:
        pass
sys.exit(failures)
"""


def try_all(world):
    """Another user opens and locks everything that is in the store."""
    paths = [world.store, *world.store.rglob("*")]
    finished = world.as_nobody("/usr/bin/python3", "-c", TRY, *paths)
    assert finished.code == 0, finished.text


@attempt(
    "another user",
    "reads layers, configs and records",
    "permission denied",
    "the store is its owner's alone: 0700",
)
def another_user_reads(world):
    oci.load_box(world)
    try_all(world)
    mode = stat.S_IMODE(world.store.stat().st_mode)
    assert mode == 0o700, oct(mode)


@attempt(
    "another user",
    "takes the locks of a store that an older mica left readable for all",
    "permission denied; mica does not wait",
    "a store is tightened when it is opened; locks are 0600",
)
def another_user_takes_locks(world):
    oci.load_box(world)
    for path in [world.store, *world.store.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    world.mica("images", seconds=20).worked()
    try_all(world)
    world.mica("ps", "-a", seconds=20).worked()


@attempt(
    "another user",
    "reads what `mica save`, `mica ext4 mkfs`, `mica ext4 export` and `mica memfs --save` write",
    "permission denied",
    "all that mica writes for a user is 0600",
)
def another_user_reads_an_export(world):
    oci.load_box(world)
    image, disk, packed, saved = map(world.path, ("box.tar", "disk", "disk.tar", "memory.tar"))
    place = world.path("place")
    place.mkdir()
    world.mica("save", "-o", image, "box").worked()
    world.mica("ext4", "mkfs", disk, "--size", "16M").worked()
    world.mica("ext4", "export", disk, packed).worked()
    world.mica("memfs", "--save", saved, place, "--", "touch", "file").worked()
    for out in (image, disk, packed, saved):
        assert out.exists(), out
        assert world.as_nobody("cat", out).code != 0, f"{NOBODY} reads {out.name}"


TAKE = """
import os, socket, sys
kept = []
for first in range(0x70010000, 0x80000000, 65536):
    kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    kept[-1].bind(f"\\0micabox-users-{first}")
for place in ("/run/micabox", "/var/lib/micabox", "/dev/micabox"):
    try:
        os.mkdir(place)
        sys.exit(f"made {place}")
    except (PermissionError, FileExistsError):
        pass
try:
    os.open("/run/micabox/containers", os.O_RDWR)
    sys.exit("opened the locks")
except OSError:
    pass
print("took", len(kept), flush=True)
sys.stdin.read()
"""


@attempt(
    "another user",
    "takes each name that marks a user of a sandbox as taken, before root's mica does",
    "root's mica has users for all of its sandboxes",
    "the marks are locks in a directory of root's",
)
def another_user_takes_names(world):
    guests.box(world)
    # Abstract names are of a network namespace: of one for this attempt.
    command, environment = world.command(
        ("run", "--rm", "--quiet", "--backend", "host", "--net", "none", "box", "echo", "fine")
    )
    take = f'setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups python3 -c "$TAKE"'
    script = (
        f"coproc {{ ulimit -n 5000; exec {take}; }}; "
        f'read -ru "${{COPROC[0]}}" took; echo "$took"; {shlex.join(command)}'
    )
    environment = {**environment, "TAKE": TAKE}
    finished = execute(["unshare", "-n", "bash", "-c", script], environment, 60, None).worked()
    assert "took 4095" in finished.text and "fine" in finished.text, finished.text


SWAP = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
os.chdir(sys.argv[1])
os.mkdir("place")
os.symlink(sys.argv[2], "link")
print("ready", flush=True)
while True:
    libc.renameat2(-100, b"place", -100, b"link", 2)
"""


@attempt(
    "another user",
    "exchanges a directory that root mounts on for a link to root's own, again and again",
    "refused, or mounted on the directory; never where the link leads",
    "another user's links are not followed; what was found is held and mounted on",
)
def another_user_swaps_a_place(world):
    oci.load_box(world)
    theirs, target = world.path("theirs"), world.path("target")
    theirs.mkdir()
    target.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    swapper = subprocess.Popen(
        [*drop, "/usr/bin/python3", "-c", SWAP, theirs, target], stdout=subprocess.PIPE
    )
    world.children.append(swapper)
    swapper.stdout.readline()
    mounted = 0
    for number in range(20):
        how = ("--with", "fuse") if number % 2 else ()
        # What serves the tree goes on, with all that it inherits.
        command, environment = world.command(("mount", *how, "box", theirs / "place"))
        silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, check=False, **silent)
        for line in Path("/proc/mounts").read_text().splitlines():
            place = line.split()[1]
            if place.startswith(str(world.directory)):
                assert place != str(target), "mounted where the link leads"
                mounted += 1
                subprocess.run(["umount", "-l", place], check=False)
    swapper.kill()
    assert mounted, "never mounted at all"
