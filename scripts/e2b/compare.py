#!/usr/bin/env python3
"""Compares what came out of E2B's suites with what is expected: compare.py SUITE.xml...

The files are in JUnit's format. expected/SUITE has the tests that fail, below a line with the reason: `# REASON` where
they always do, `? REASON` where it depends on the machine. The exit code is 1 if others fail, or if one of the former
passes.
"""

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

EXPECTED = Path(__file__).parent / "expected"


def results(file: Path) -> dict[str, str]:
    """What came out of each test. One whose name another has had has a number."""
    found, times = {}, Counter()
    for case in ET.parse(file).iter("testcase"):
        name = f"{case.get('classname')} {case.get('name')}"
        times[name] += 1
        kinds = {child.tag for child in case}
        is_failed = kinds & {"failure", "error"}
        found[name if times[name] == 1 else f"{name} ({times[name]})"] = (
            "failed" if is_failed else "skipped" if "skipped" in kinds else "passed"
        )
    return found


def expected(suite: str) -> dict[str, str]:
    """The tests that fail, and the line with the reason."""
    found, reason = {}, ""
    for line in (EXPECTED / suite).read_text().splitlines():
        if line.startswith(("# ", "? ")):
            reason = line
        elif line:
            found[line] = reason
    return found


def main() -> int:
    counts, surprises = [], []
    for file in map(Path, sys.argv[1:]):
        suite, found = file.stem, results(file)
        reasons = expected(suite)
        count = Counter(found.values())
        counts.append(f"{suite} {count['passed']} of {len(found)} passed")
        print(
            f"{suite}: {count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped"
        )
        failed = [name for name, result in found.items() if result == "failed"]
        for reason, number in Counter(
            reasons.get(name, "# not expected") for name in failed
        ).items():
            print(f"  {number:3} {reason[2:]}")
        for name, result in found.items():
            if result == "failed" and name not in reasons:
                surprises.append(f"{suite}: fails: {name}")
            if result == "passed" and reasons.get(name, "").startswith("#"):
                surprises.append(f"{suite}: passes, though expected to fail: {name}")
    for line in surprises:
        print(line)
    print(f"suites: {', '.join(counts)}; {len(surprises)} not as expected")
    return int(bool(surprises))


if __name__ == "__main__":
    sys.exit(main())
