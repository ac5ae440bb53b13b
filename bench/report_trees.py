"""The table of filesystems in memory."""

from bench.table import MIB, met, source, table

# Times of tmpfs that each step may take.
AIMS = {"clone": 1.2, "status": 1.3}


def trees(result: dict) -> str:
    contenders = result["contenders"]
    base = contenders["tmpfs"]
    seconds = [step for step in base if step not in ("writes", "runs")]
    rows = [
        [
            who,
            *(f"{of[step] * 1e3:.0f} ({of[step] / base[step]:.2f})" for step in seconds),
            f"{result['written'] / of['writes'] / 1e6:,.0f}",
        ]
        for who, of in contenders.items()
    ]
    columns = ["", *(f"{step}, ms" for step in seconds), f"{result['piece']:,} bytes a write, MB/s"]
    ours = contenders["mica memfs --cache always"]
    ratios = {step: ours[step] / base[step] for step in AIMS}
    aims = [
        f"{step} at {most} of tmpfs or less: {met(ratios[step] <= most)} ({ratios[step]:.2f})"
        for step, most in AIMS.items()
    ]
    held = [
        [who, *(f"{of[when] / MIB:.0f}" for when in ("empty", "held", "full", "after"))]
        for who, of in result["memory"].items()
    ]
    return "\n\n".join(
        [
            f"{result['sources']}; median of {result['rounds']} interleaved rounds, and beside it "
            f"how many times tmpfs's. {source(result)}",
            table(columns, rows),
            f"Aims: {'; '.join(aims)}.",
            table(["memory of the server, MiB", "empty", "files", "with them", "removed"], held),
        ]
    )


TABLES = {"trees": trees}
