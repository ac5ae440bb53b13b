"""The tables of bench/README.md, from the raw results.

    python3 -m bench.report

Text outside the `<!-- NAME -->` … `<!-- /NAME -->` markers is left as it is.
"""

import re
import statistics
from collections.abc import Callable

from bench import measure, report_sandboxes, report_trees
from bench.table import MIB, met, source, table

README = measure.REPOSITORY / "bench" / "README.md"
# The ways to see the host's changes.


def pull(result: dict) -> list[str]:
    contenders = result["contenders"]
    base = contenders["mica pull"]
    rows = [
        [
            f"`{who}`" if who == "mica pull" else who,
            f"{cost['cpu']:.2f}",
            f"{cost['wall']:.2f}",
            f"{base['cpu'] / cost['cpu']:.2f}",
            f"{base['wall'] / cost['wall']:.2f}",
        ]
        for who, cost in contenders.items()
    ]
    beyond = base["cpu"] - contenders["convert, both layers"]["cpu"]
    heading = (
        f"**Pull** of both layers, {result['blob_bytes'] / 1e6:.0f} MB, from a registry on "
        f"loopback; containerd {result['containerd']}, mkfs.erofs {result['mkfs.erofs']}; median "
        f"of {len(base['runs'])} interleaved rounds. {source(result)}"
    )
    return [
        heading,
        table(["", "CPU, s", "wall, s", "`mica pull`'s CPU to it", "and wall"], rows),
        f"Aim, at most 1 s of CPU beyond conversion: {met(beyond <= 1)} ({beyond:.2f}).",
    ]


def convert(result: dict) -> str:
    parts = [source(result)]
    for name, layer in result["layers"].items():
        contenders = layer["contenders"]
        base = contenders.get("gzip -dc | sha256sum")
        if not base:
            continue
        rounds = len(base["runs"])
        parts.append(
            f"**{name}**: {layer['blob_bytes'] / MIB:.0f} MiB of gzip, "
            f"{layer['tar_bytes'] / MIB:.0f} MiB of tar, {layer['entries']:,} entries; "
            f"median of {rounds} interleaved round{'s' * (rounds != 1)}"
        )
        parts.append(
            table(
                ["", "CPU, s", "wall, s", "CPU ratio", "wall ratio"],
                [
                    [
                        f"`{who}`",
                        f"{cost['cpu']:.2f}",
                        f"{cost['wall']:.2f}",
                        f"{cost['cpu'] / base['cpu']:.2f}",
                        f"{cost['wall'] / base['wall']:.2f}",
                    ]
                    for who, cost in contenders.items()
                ],
            )
        )
        ratio = contenders["convert"]["cpu"] / base["cpu"]
        wall = contenders["convert"]["wall"] / base["wall"]
        parts.append(
            f"Aim, CPU at 0.33 or less: {met(ratio <= 0.33)} ({ratio:.2f}). "
            f"Aim, wall time lower still: {met(wall < ratio)} ({wall:.2f})."
        )
    rows, within = [], True
    for name, layer in result["layers"].items():
        allowed = 16 * MIB + layer["entries"] * 512
        peaks = [layer["contenders"][who]["rss"] for who in ("convert", "mica load")]
        within &= max(peaks) <= allowed
        rows.append(
            [
                name,
                f"{layer['tar_bytes'] / MIB:.0f}",
                f"{layer['entries']:,}",
                *(f"{peak / MIB:.1f}" for peak in peaks),
                f"{allowed / MIB:.1f}",
            ]
        )
    parts.append(
        table(
            [
                "peak RSS",
                "tar, MiB",
                "entries",
                "`convert`",
                "`mica load`",
                "16 MiB + 0.5 KB an inode",
            ],
            rows,
        )
    )
    parts.append(
        f"Aim, peak memory: {met(within)}. The measuring process sets a floor of "
        f"{result['rss_floor'] / MIB:.1f} MiB below which no peak is seen."
    )
    parts += pull(result["pull"]) if "pull" in result else []
    return "\n\n".join(parts)


def jail(result: dict) -> str:
    load = result["machine"]["load_before"]
    rows, within = [], True
    for name, layer in result["layers"].items():
        low, high = layer["ratio_within"]
        is_large = layer["bytes"] > 16 * MIB
        within &= layer["ratio"] <= 1.02 or not is_large
        cost = f"{(layer['ratio'] - 1) * 100:+.1f} %"
        if not is_large:
            cost = f"{(layer['jail'] - layer['here']) * 1e3:+.1f} ms"
        rows.append(
            [
                f"{name}, {layer['bytes'] / MIB:.1f} MiB",
                f"{layer['here']:.3f}",
                f"{layer['jail']:.3f}",
                cost,
                f"{low:.3f} to {high:.3f}",
            ]
        )
    blob = result["layers"]["gzip"]["bytes"]
    pieces = " and ".join(
        f"{took / blob * 1e9:.1f} ns a byte in pieces of {piece} KiB"
        for piece, took in result["kept"].items()
    )
    calls = [
        [f"`{name}`", f"{took['cpu'] * 1e3:.1f}", f"{took['wall'] * 1e3:.1f}"]
        for name, took in result["calls"].items()
    ]
    return "\n\n".join(
        [
            f"{source(result)} Load {load:.1f} before the first round.",
            table(["layer", "here, s of CPU", "in jail, s", "more", "ratio, 95 %"], rows),
            f"Aim, at most 2 % for large layers: {met(within)}.",
            f"What a pull keeps of a blob until the layer is published costs {pieces}.",
            table(["call", "CPU, ms", "wall, ms"], calls),
        ]
    )


def merge(result: dict) -> str:
    milliseconds = result["median"] * 1e3
    per_inode = result["bytes_an_inode_beyond_names"]
    rows = [
        ["merge, median", f"{milliseconds:.1f} ms"],
        [
            "merge, fastest and slowest",
            f"{result['min'] * 1e3:.1f} to {result['max'] * 1e3:.1f} ms",
        ],
        ["of which on a processor, median", f"{result['cpu_median'] * 1e3:.1f} ms"],
        ["flush to disk afterwards, median", f"{result['flush_median'] * 1e3:.1f} ms"],
        ["peak RSS of all that", f"{result['rss'] / MIB:.1f} MiB"],
        ["fsmeta", f"{result['fsmeta_bytes'] / MIB:.2f} MiB"],
        ["inodes", f"{result['inodes']:,}"],
        ["names in directories", f"{result['name_bytes'] / MIB:.2f} MiB"],
        ["bytes an inode beyond names", f"{per_inode:.1f}"],
    ]
    if peer := result.get("mkfs_blobdev"):
        rows.append(
            ["`mkfs.erofs --blobdev` of the merged tree", f"{peer['meta_bytes'] / MIB:.2f} MiB"]
        )
    return "\n\n".join(
        [
            source(result),
            table(["ten layers, 50,000 files", ""], rows),
            f"Aim, under 100 ms: {met(milliseconds < 100)}.",
            f"Aim, under 100 bytes an inode beyond names: {met(per_inode < 100)}.",
        ]
    )


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


def fs(result: dict) -> str:
    names = result["configurations"]
    rows = []
    for workload, runs in result["workloads"].items():
        base = runs["ext4"]["median"]
        row = [f"`{workload}`", f"{base * 1e3:.1f}", str(runs["ext4"]["iterations"])]
        row += [f"{runs[who]['median'] / base:.2f}" for who in names if who != "ext4"]
        rows.append(row)
    means = result["geometric_mean"]
    rows.append(
        ["**geometric mean**", "", ""] + [f"**{means[who]:.2f}**" for who in names if who != "ext4"]
    )
    header = ["workload", "ext4, ms", "n"] + [who for who in names if who != "ext4"]
    return "\n\n".join(
        [
            f"{source(result)} {result['minutes']:.0f} minutes.",
            table(header, rows),
            "![ratios](results/fs.png)",
        ]
    )


def share(result: dict) -> str:
    ours, peer = "mica", "virtiofsd"
    rows = []
    for workload, runs in result["workloads"].items():
        base = runs[peer]["median"]
        mine = runs[ours]["median"]
        rows.append([f"`{workload}`", f"{base * 1e3:.1f}", f"{mine * 1e3:.1f}", f"{mine / base:.2f}"])
    mean = result["geometric_mean"]
    rows.append(["**geometric mean**", "", "", f"**{mean:.2f}**"])
    iterations = next(iter(result["workloads"].values()))[peer]["iterations"]
    parts = [
        f"{source(result)} {result['peer']}; medians of {iterations} iterations.",
        table(["workload", f"{peer}, ms", f"{ours}, ms", "ratio"], rows),
        f"Aim, 0.7 or less: {met(mean <= 0.7)} ({mean:.2f}).",
    ]
    if programs := result.get("programs"):
        rows = []
        for name, found in programs.items():
            base, mine = statistics.median(found["ext4"]), statistics.median(found[ours])
            rows.append([f"`{name}`", f"{base:.2f}", f"{mine:.2f}", f"{mine / base:.2f}"])
        parts.append(table(["program", "own ext4 disk, s", "folder, s", "ratio"], rows))
    return "\n\n".join(parts)


def dax(result: dict) -> str:
    rows = [
        [
            who,
            f"{found['mapped_bytes'] / MIB:.1f}",
            f"{found['growth_kib'] / 1024:.2f}",
            f"{found['seconds'] * 1e3:.0f}",
        ]
        for who, found in result["configurations"].items()
    ]
    none = all(
        found["growth_kib"] < 64
        for who, found in result["configurations"].items()
        if who.endswith("pmem")
    )
    return "\n\n".join(
        [
            source(result) + f" Median of {result['rounds']} rounds.",
            table(["", "mapped, MiB", "page cache grew by, MiB", "time, ms"], rows),
            f"Aim, DAX shows none: {met(none)}.",
        ]
    )


def ext4(result: dict) -> str:
    who = list(result["rows"])
    mine, kernel = result["rows"]["ours"], result["rows"]["kernel ext4"]

    def cell(row: str, seconds: float) -> str:
        # Rows with buffers are of 64 MiB as a whole, all others of one operation.
        if row.startswith(("write", "read")):
            return f"{64 * MIB / seconds / 1e6:,.0f}"
        return f"{seconds * 1e6:.2f}"

    def rows(contents: bool) -> list[list[str]]:
        return [
            [row, *(cell(row, result["rows"][one][row]) for one in who), verdict(row)]
            for row in mine
            if row.startswith(("write", "read")) == contents
        ]

    def verdict(row: str) -> str:
        return met(mine[row] <= kernel[row])

    making = [[name, f"{seconds * 1e3:.2f}"] for name, seconds in result["mkfs"].items()]
    filling = [[name, f"{seconds * 1e3:.0f}"] for name, seconds in result["import"].items()]
    fastest, mke2fs = list(result["import"].values())[:2]
    made = result["mkfs"]["ours, in process"]
    aim = "as fast as the kernel"
    return "\n\n".join(
        [
            source(result) + f" Medians of {result['rounds']} interleaved rounds.",
            table(["microseconds an operation", *who, aim], rows(False)),
            table(["MB/s", *who, aim], rows(True)),
            table(["mkfs of 8 GiB", "ms"], making),
            f"Aim, under 1 ms in process: {met(made < 1e-3)}.",
            table(["30,000 files, 228 MiB", "ms"], filling),
            f"Aim, faster than `mke2fs -d`: {met(fastest < mke2fs)}.",
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
    "ext4": ext4,
    "convert": convert,
    "jail": jail,
    "merge": merge,
    "kernel": kernel,
    "start": start,
    "fs": fs,
    "share": share,
    "dax": dax,
    "net": net,
    **report_sandboxes.TABLES,
    **report_trees.TABLES,
}


def write() -> None:
    """Fills the README's tables with what was measured; keeps those that were not."""
    text = README.read_text()
    for name, make in TABLES.items():
        result = measure.load(name)
        if result:
            body = f"<!-- {name} -->\n\n{make(result)}\n\n<!-- /{name} -->"
            pattern = rf"<!-- {name} -->.*?<!-- /{name} -->"
            text = re.sub(pattern, lambda _, body=body: body, text, flags=re.DOTALL)
    README.write_text(text)


if __name__ == "__main__":
    write()
