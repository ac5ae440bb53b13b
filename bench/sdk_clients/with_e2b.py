"""E2B's own client, of a `mica serve --e2b`, as a client that is measured: requests as for with_micabox.py.

    PYTHONPATH=SITE-PACKAGES E2B_API_URL=... python3 with_e2b.py IMAGE

Requests: {"do": "rounds" | "looks" | "lives", ...}; all times are seconds.
"""

import concurrent.futures
import json
import sys
import time

from e2b import Sandbox

[IMAGE] = sys.argv[1:]


def create() -> Sandbox:
    return Sandbox.create(IMAGE, timeout=7200, allow_internet_access=False)


def rounds(count: int) -> list[float]:
    """Of each command."""
    return [timed(lambda: box.commands.run("true")) for _ in range(count)]


def looks(count: int) -> list[float]:
    """Of each look for a file."""
    return [timed(lambda: box.files.exists("/etc/passwd")) for _ in range(count)]


def lives(count: int, threads: int) -> float:
    """Until all sandboxes were made, used and ended, so many at once."""

    def life(_: int) -> None:
        made = create()
        made.commands.run("true")
        made.kill()

    def all_of_them() -> None:
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(life, range(count)):
                pass

    return timed(all_of_them)


def timed(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


WORK = {"rounds": rounds, "looks": looks, "lives": lives}
box = create()
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps(WORK[request.pop("do")](**request)), flush=True)
box.kill()
