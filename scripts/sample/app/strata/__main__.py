"""python3 -m strata [NAME...]: prints what is known about minerals."""

import os
import platform
import sys

from strata import minerals


def main(names):
    table = minerals.load(os.environ["STRATA_DATA"])
    unknown = [name for name in names if name not in table]
    for name in names or sorted(table):
        if name in table:
            print(minerals.describe(name, table[name]))
    for name in unknown:
        print(f"strata: no mineral named {name!r}", file=sys.stderr)
    if not names:
        print(
            f"-- Python {platform.python_version()} on {platform.system()} {platform.release()}, uid {os.getuid()}"
        )
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
