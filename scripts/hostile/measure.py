"""Runs a command and reports its exit code and its peak memory in KiB: `measure.py FD COMMAND...`

A process of its own, as what the kernel reports of a child begins with what its parent had.
"""

import os
import sys

child = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(child, 0)
report = f"{os.waitstatus_to_exitcode(status)} {usage.ru_maxrss}"
os.write(int(sys.argv[1]), report.encode())
