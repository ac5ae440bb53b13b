"""Page-cache growth in the guest while 64 MiB of image files are mapped and read.

    python3 -m bench.dax [--rounds N]

With pmem the pages of the files are the host's, mapped by DAX: the guest's cache must
not grow. With a disk every byte lands in it.
"""

import argparse
import statistics
from functools import partial

from bench import measure, mica, report, sample


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.dax")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    mica.binary()
    host = measure.machine()
    image = sample.load()
    contenders = {
        f"{root}/{transport}": partial(mica.workload, image, root, transport, "mmap_exec_64m", 1)
        for root, transport in mica.SHAPES
    }
    runs = measure.interleave(contenders, arguments.rounds)
    result = {
        "rounds": arguments.rounds,
        "configurations": {
            who: {
                "mapped_bytes": found[0]["mapped_bytes"],
                "growth_kib": statistics.median(run["page_cache_growth_kib"] for run in found),
                "seconds": statistics.median(run["median"] for run in found),
                "runs": found,
            }
            for who, found in runs.items()
        },
    }
    measure.save("dax", host, result)
    report.write()


if __name__ == "__main__":
    main()
