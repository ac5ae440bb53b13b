"""The `microsandbox` package as a client that is measured: requests as for with_micabox.py.

    PYTHONPATH=DIRECTORY HOME=STATE python3 with_microsandbox.py IMAGE MIB

Requests: {"do": "rounds" | "lives", ...}; all times are seconds.
"""

import asyncio
import itertools
import json
import sys
import time

from microsandbox import PullPolicy, Sandbox

IMAGE, MIB = sys.argv[1:]
numbers = itertools.count()


async def create() -> Sandbox:
    return await Sandbox.create(
        f"measured-{next(numbers)}",
        image=IMAGE,
        memory=int(MIB),
        cpus=1,
        pull_policy=PullPolicy.NEVER,
    )


async def use(box: Sandbox) -> None:
    done = await box.exec("true")
    assert done.exit_code == 0, done


async def rounds(box: Sandbox, count: int) -> list[float]:
    """Of each command."""
    took = []
    for _ in range(count):
        start = time.perf_counter()
        await use(box)
        took.append(time.perf_counter() - start)
    return took


async def lives(_: Sandbox, count: int, threads: int) -> float:
    """Until all sandboxes were made, used and ended, so many at once."""
    places = asyncio.Semaphore(threads)

    async def life() -> None:
        async with places:
            made = await create()
            await use(made)
            await made.destroy(force=True)

    start = time.perf_counter()
    await asyncio.gather(*[life() for _ in range(count)])
    return time.perf_counter() - start


async def main() -> None:
    box = await create()
    work = {"rounds": rounds, "lives": lives}
    # Nothing else runs meanwhile.
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(await work[request.pop("do")](box, **request)), flush=True)
    await box.destroy(force=True)


asyncio.run(main())
