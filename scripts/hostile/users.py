"""Another user of the machine, beside root's mica."""

import stat

import oci
from attempts import attempt
from world import NOBODY

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
    "reads what `mica save` writes",
    "permission denied",
    "files of exports are 0600",
)
def another_user_reads_an_export(world):
    oci.load_box(world)
    out = world.path("box.tar")
    world.mica("save", "-o", out, "box").worked()
    assert world.as_nobody("cat", out).code != 0, f"{NOBODY} reads it"
