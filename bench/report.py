"""The tables of bench/README.md, from the raw results.

    python3 -m bench.report

Text outside the `<!-- NAME -->` … `<!-- /NAME -->` markers is left as it is.
"""

import re
import textwrap
from collections.abc import Callable

from bench import measure, report_images, report_sandboxes, report_trees
from bench.table import MIB, met, source, table

WHOLE_WORDS = {"break_long_words": False, "break_on_hyphens": False}
README = measure.REPOSITORY / "bench" / "README.md"


def kernel(result: dict) -> str:
    base = result["contenders"]["ours, as `mica run` starts it"]
    rows = [
        [
            who,
            f"{found['init'] * 1e3:.0f}",
            f"{found['ready'] * 1e3:.0f}",
            f"{found['init'] / base['init']:.1f}",
            f"{found['ready'] / base['ready']:.1f}",
        ]
        for who, found in result["contenders"].items()
    ]
    sizes = [f"{what} {size / MIB:.1f} MiB" for what, size in result["sizes"].items()]
    return "\n\n".join(
        [
            f"{source(result)} Medians of {result['rounds']} interleaved rounds.",
            table(["", "init, ms", "ready, ms", "ratio", "ratio"], rows),
            f"Sizes: {', '.join(sizes)}.",
        ]
    )


def start(result: dict) -> str:
    phases = result["phases"]
    rows = []
    for who, found in result["contenders"].items():
        split = found.get("phases", {})
        rows.append(
            [who, f"{found['median'] * 1e3:.0f}"]
            + [f"{split[name] * 1e3:.0f}" if name in split else "" for name in phases]
            + [f"{found['median'] / result['contenders']['ext4']['median']:.2f}"]
        )
    return "\n\n".join(
        [
            source(result) + f" Milliseconds, median of {result['rounds']} interleaved rounds.",
            table(["", "whole", *phases, "whole, ratio"], rows),
        ]
    )


def instructions(result: dict) -> str:
    after, before = result["after"], result.get("before")

    def cells(values: list[float | None]) -> list[str]:
        return ["" if value is None else f"{value / 1e6:.2f}" for value in values]

    def kernels(count: Callable[[dict], float | None]) -> list[str]:
        return cells([count(found) for found in (before, after) if found])

    def way(name: str) -> Callable[[dict], float | None]:
        return lambda found: found["ways"].get(name, {}).get("median")

    rows = [[f"to the first process, {name}", *kernels(way(name))] for name in after["ways"]]
    rows.append(["initcalls", *kernels(lambda found: sum(found["initcalls"].values()))])
    for name, count in sorted(after["initcalls"].items(), key=lambda item: -item[1]):
        if count >= 300_000:
            now = lambda found, name=name: found["initcalls"].get(name)
            rows.append([f"`{name}`", *kernels(now)])
    spread = [
        (max(way["runs"]) - min(way["runs"])) / way["median"] for way in after["ways"].values()
    ]
    header = ["millions of instructions", *(["before"] if before else []), "now"]
    return "\n\n".join(
        [
            (
                f"{source(result)} Medians of {result['rounds']} boots, which differed by "
                f"{max(spread) * 1e4:.0f} in ten thousand at most."
            ),
            table(header, rows),
        ]
    )


def net(result: dict) -> str:
    after, before = result["after"], result.get("before")
    rows, ratios = [], []
    for way, name in [("d", "down"), ("u", "up")]:
        for what, unit in [("instructions", "million instructions"), ("nanoseconds", "ms of CPU")]:
            values = [found[way][what] for found in (before, after) if found]
            ratio = values[-1] / values[0]
            rows.append([f"{name}, {unit}", *(f"{value / 1e6:,.0f}" for value in values)])
            if before:
                rows[-1].append(f"{ratio:.2f}")
            ratios.append((ratio, rows[-1][0]))
    columns = ["before", "now", "ratio"] if before else ["now"]
    parts = [source(result), table(["a GiB", *columns], rows)]
    if before:
        worst, row = max(ratios)
        parts.append(f"Aim, half of each: {met(worst <= 0.505)} ({worst:.2f}: {row}).")
    return "\n\n".join(parts)


def whole_aims(starts: dict, scale: float) -> str:
    """What is left of a sandbox's start and end, beside a container."""
    first, end = starts["first"], starts["exit"]
    warm = first["mica run"]["seconds"] * scale
    rest = end["mica run"]["seconds"] * scale - warm
    fork = end["mica fork"]["seconds"] * scale
    parts = [
        f"Aim, 15 to a first output without a pool: {met(warm <= 15)} ({warm:.1f}).",
        f"Aim, 2 from there to the end: {met(rest <= 2)} ({rest:.1f}).",
        f"Aim, 25 for `mica fork`: {met(fork <= 25)} ({fork:.1f}).",
    ]
    if "memory" in end["mica fork"]:
        copy = end["mica fork"]
        machine, owner = copy["memory"], copy["owner"]["own"]["pss"] / MIB
        ram, own = machine["ram"]["private"] / MIB, machine["own"]["pss"] / MIB
        parts.append(
            f"Aim, 6 MiB for its copy, idle: {met(ram + own + owner <= 6)} (RAM of its own {ram:.1f}, "
            f"PSS of its machine's processes {own:.1f}, of its owner {owner:.1f})."
        )
    if "mica run, from a pool" in first:
        pooled = first["mica run, from a pool"]["seconds"] * scale
        parts.insert(1, f"Aim, 8.7 with one: {met(pooled <= 8.7)} ({pooled:.1f}).")
    if "mica exec" in end and "crun exec" in end:
        ours, theirs = (end[who]["seconds"] * scale for who in ("mica exec", "crun exec"))
        aim = f"Aim, `crun exec` for `mica exec`: {met(ours <= theirs)}"
        parts.append(f"{aim} ({ours:.1f}, at {ours / theirs:.2f}).")
    if "mica exec" in end and "msb exec" in end:
        ours, theirs = (end[who]["seconds"] * scale for who in ("mica exec", "msb exec"))
        aim = f"Aim, a quarter of microsandbox's `msb exec`: {met(ours <= theirs / 4)}"
        parts.append(f"{aim} (at {ours / theirs:.2f} of {theirs:.1f}).")
    if "crun run" in first:
        ratio = first["mica run"]["seconds"] / first["crun run"]["seconds"]
        parts.insert(0, f"`mica run` is at {ratio:.2f} of `crun run`.")
    return " ".join(parts)


def vmm(result: dict) -> str:
    clock, counted = result["by clock"], result.get("by instructions")
    best = counted or clock
    # An instruction is a nanosecond there.
    unit = "M instructions" if counted else "ms"
    scale = 1e3

    def times(found: dict, also: dict) -> list[str]:
        """Counted, if it was, and by the clock: median, fastest, slowest."""
        by_clock = f"{also['seconds'] * 1e3:.0f} ({also['min'] * 1e3:.0f}\N{EN DASH}{also['max'] * 1e3:.0f})"
        return [f"{found['seconds'] * scale:.1f}", by_clock]

    def mib(found: dict, part: str, kind: str, how: str) -> str:
        return f"{found[part][kind][how] / MIB:.1f}"

    ms = "emulated ms" if result["emulated"] else "ms"
    kernel, init, output = (best["starts"][what] for what in ("kernel", "init", "output"))
    first = [
        [
            who,
            f"{found['cpu'] * scale:.1f}",
            *times(found, clock["starts"]["kernel"][who]),
            f"{found['exits']:.0f}",
            *(mib(found, "memory", "own", how) for how in ("pss", "rss", "private")),
        ]
        for who, found in kernel.items()
    ]
    second = [
        [
            who,
            *times(found, clock["starts"]["init"][who]),
            *(f"{found[name]:.0f}" for name in ("exits", "pf_taken", "io_exits", "mmio_exits")),
            mib(found, "memory", "ram", "rss"),
        ]
        for who, found in init.items()
    ]
    cold = output["mica run --cold"]["seconds"]
    third = [
        [
            f"`{who}`",
            *times(found, clock["starts"]["output"][who]),
            f"{found['seconds'] / cold:.2f}",
            f"{found['exits']:.0f}",
            mib(found, "memory", "own", "pss"),
            mib(found, "memory", "ram", "rss"),
            mib(found, "owner", "own", "pss"),
        ]
        for who, found in output.items()
    ]
    whole = [
        [
            f"`{who}`",
            ""
            if who not in best["starts"]["first"]
            else f"{best['starts']['first'][who]['seconds'] * scale:.1f}",
            *times(found, clock["starts"]["exit"][who]),
        ]
        for who, found in best["starts"].get("exit", {}).items()
    ]
    fourth = []
    for count, found in best["forks"].items():
        fork, boot = found["fork"], found["boot"]
        by_clock = clock["forks"][count]["fork"]
        fourth.append(
            [
                count,
                f"{boot['seconds'] * scale:.1f}",
                f"{fork['seconds'] * scale:.1f}",
                f"{fork['p99'] * scale:.1f}",
                f"{fork['seconds'] / boot['seconds']:.2f}",
                f"{by_clock['seconds'] * 1e3:.0f}",
                f"{by_clock['p99'] * 1e3:.0f}",
                mib(fork, "memory", "own", "pss"),
                mib(fork, "memory", "ram", "private"),
                mib(fork, "owner", "own", "pss"),
            ]
        )
    ours = kernel["ours"]
    exits = {who: init["ours"]["exits"] / init[who]["exits"] for who in init if who != "ours"}
    most = best["forks"][max(best["forks"], key=int)]
    share = most["fork"]["seconds"] / most["boot"]["seconds"]
    added = most["fork"]["memory"]
    added = (added["own"]["pss"] + added["ram"]["private"]) / MIB
    overhead = ours["memory"]["own"]["pss"] / MIB
    cpu, judged = ours["cpu"], ""
    if counted:
        # What an instruction takes where the clock doesn't count them.
        cpu *= result["rate"] / counted["rate"]
        judged = (
            f": {ours['cpu'] * scale:.1f} M instructions, where the {counted['rate'] * scale:.1f} M"
            f" of `mica --version` take this machine {result['rate'] * 1e3:.1f} ms"
        )
    parts = [
        source(result) + f" Medians of {result['rounds']} interleaved rounds by the clock"
        f"{', of 3 by instructions' if counted else ''}; the fastest and slowest in brackets.",
        table(
            [
                "to the kernel's first instruction",
                f"CPU, {unit}",
                f"whole, {unit}",
                f"whole, {ms}",
                "exits",
                "PSS, MiB",
                "RSS, MiB",
                "private, MiB",
            ],
            first,
        ),
        (
            f"Aim, under 8 ms of CPU: {met(cpu < 0.008)} ({cpu * 1e3:.1f}{judged}). "
            f"Aim, under 5 MiB beyond the guest's: {met(overhead < 5)} ({overhead:.1f})."
        ),
        table(
            [
                "to init",
                f"whole, {unit}",
                f"whole, {ms}",
                "exits",
                "for pages",
                "ports",
                "MMIO",
                "guest's RAM, MiB",
            ],
            second,
        ),
        "Aim, half of QEMU's exits to init: "
        + ", ".join(f"{met(part <= 0.5)} for {who} ({part:.2f})" for who, part in exits.items())
        + ".",
        table(
            [
                "to a command's first output",
                f"whole, {unit}",
                f"whole, {ms}",
                "ratio",
                "exits",
                "machine's PSS, MiB",
                "guest's RAM, MiB",
                "PSS of owner and `mica`, MiB",
            ],
            third,
        ),
        # Results of earlier versions don't have it.
        *(
            [
                table(["to the end", "first output", f"whole, {unit}", f"whole, {ms}"], whole),
                whole_aims(best["starts"], scale),
            ]
            if whole
            else []
        ),
        table(
            [
                "copies",
                f"boot, {unit}",
                "p50",
                "p99",
                "p50 to boot",
                f"p50, {ms}",
                f"p99, {ms}",
                "machine's PSS, MiB",
                "RAM of its own, MiB",
                "PSS of owner and `mica`, MiB",
            ],
            fourth,
        ),
        (
            f"Aim, a copy's first output in a tenth of a boot: {met(share <= 0.1)} ({share:.2f}). "
            f"Aim, under 2 MiB for an idle copy's machine: {met(added < 2)} ({added:.1f})."
        ),
    ]
    return "\n\n".join(parts)


TABLES = {
    "instructions": instructions,
    "vmm": vmm,
    "kernel": kernel,
    "start": start,
    "net": net,
    **report_images.TABLES,
    **report_sandboxes.TABLES,
    **report_trees.TABLES,
}


def wrapped(body: str) -> str:
    """The body with lines of prose as long as `scripts/prose` allows; rows of tables stay."""

    def fill(line: str) -> str:
        return line if line.startswith(("|", "!")) else textwrap.fill(line, 118, **WHOLE_WORDS)

    return "\n".join(map(fill, body.split("\n")))


def write() -> None:
    """Fills the README's tables with what was measured; keeps those that were not."""
    text = README.read_text()
    for name, make in TABLES.items():
        result = measure.load(name)
        if result:
            body = f"<!-- {name} -->\n\n{wrapped(make(result))}\n\n<!-- /{name} -->"
            pattern = rf"<!-- {name} -->.*?<!-- /{name} -->"
            text = re.sub(pattern, lambda _, body=body: body, text, flags=re.DOTALL)
    README.write_text(text)


if __name__ == "__main__":
    write()
