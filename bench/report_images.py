"""Tables of images, disks and shared folders."""

import statistics

from bench.table import MIB, met, source, table

# CPU of `convert` beside `gzip -dc | sha256sum`, before images had chunk indexes and hash trees.
BEFORE = {"commit": "5d49556032ed", "debian": 0.306, "modules": 0.326}


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
        # A measurement is not compared with itself.
        if result["commit"] != BEFORE["commit"]:
            times = ratio / BEFORE[name]
            aim = f"Aim, 1.25 of its CPU ratio at {BEFORE['commit']} at most"
            parts.append(f"{aim}: {met(times <= 1.25)} ({times:.2f}).")
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
        rows.append(
            [f"`{workload}`", f"{base * 1e3:.1f}", f"{mine * 1e3:.1f}", f"{mine / base:.2f}"]
        )
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


def replica(result: dict) -> str:
    names = {
        "mica store serve": "`mica store serve`",
        "registry": "docker-registry, compressed",
        "plain": "docker-registry, not compressed",
    }
    about = f"docker-registry {result['docker_registry']}, medians of {result['rounds']} rounds."
    parts = [f"{source(result)} {about}"]
    for what, title in (("pull", "`mica pull`"), ("curl", "largest layer, `curl`")):
        costs = result[what]
        peer = costs["registry"]
        rows = [
            [
                names[who],
                f"{cost['wall']:.2f}",
                f"{cost['cpu']:.2f}",
                f"{cost['server']:.2f}",
                f"{cost['wall'] / peer['wall']:.2f}",
                f"{(cost['cpu'] + cost['server']) / (peer['cpu'] + peer['server']):.2f}",
            ]
            for who, cost in costs.items()
        ]
        header = ["wall, s", "client's CPU, s", "server's", "wall ratio", "CPU ratio, both"]
        parts.append(table([title, *header], rows))
    return "\n\n".join(parts)


def converted(result: dict) -> str:
    parts = [f"{source(result)} Medians of {result['rounds']} rounds."]
    names = {
        "convert": "`mica convert`",
        "zstd": "`zstd -3` and `sha256sum` of the same images",
        "verify": "`mica convert --verify`, archives in the store",
    }
    peer = result["made"]["zstd"]
    rows = [
        [
            names[who],
            f"{cost['wall']:.2f}",
            f"{cost['cpu']:.2f}",
            f"{cost['cpu'] / peer['cpu']:.2f}",
        ]
        for who, cost in result["made"].items()
    ]
    parts.append(table(["making", "wall, s", "CPU, s", "CPU ratio"], rows))
    share = result["made"]["convert"]["cpu"] / peer["cpu"]
    parts.append(
        f"Aim, index, digests and hash trees within 1.25 of compressing and one digest: {met(share <= 1.25)} "
        f"({share:.2f})."
    )
    names = {
        "erofs": "EROFS images, zstd in chunks",
        "zstd": "archives, zstd",
        "gzip": "archives, gzip",
    }
    peer, size = result["pulled"]["gzip"], result["sizes"]["gzip"]
    rows = [
        [
            names[who],
            f"{result['sizes'][who] / 1e6:.1f}",
            f"{result['sizes'][who] / size:.2f}",
            f"{cost['wall']:.2f}",
            f"{cost['cpu']:.2f}",
            f"{cost['wall'] / peer['wall']:.2f}",
            f"{cost['cpu'] / peer['cpu']:.2f}",
        ]
        for who, cost in result["pulled"].items()
    ]
    header = ["blobs, MB", "ratio", "wall, s", "CPU, s", "wall ratio", "CPU ratio"]
    parts.append(table(["`mica pull`", *header], rows))
    return "\n\n".join(parts)


def packed(result: dict) -> str:
    parts = [f"{source(result)} Medians of {result['rounds']} rounds."]
    space, costs = result["space"], result["costs"]
    rows = [
        ["the layers in a registry, gzip", space["gzip"]],
        ["the store", space["whole"]],
        ["the store, packed", space["packed"]],
        *[[name, peer["size"]] for name, peer in result["peers"].items() if "size" in peer],
    ]
    rows = [[who, f"{size / 1e6:.0f}", f"{size / space['gzip']:.2f}"] for who, size in rows]
    missing = ((name, peer["reason"]) for name, peer in result["peers"].items() if "reason" in peer)
    rows += [[f"{name}: not run, {reason}", "", ""] for name, reason in missing]
    parts.append(table(["twenty images", "MB", "ratio"], rows))
    alone = ", ".join(f"{ratio:.2f}" for ratio in space["alone"].values())
    parts.append(f"One image alone, packed, of its layers in gzip: {alone}.")
    share, most = space["packed"] / space["gzip"], max(space["alone"].values())
    parts.append(
        f"Aim, twenty at 0.7 or less: {met(share <= 0.7)} ({share:.2f}). "
        f"Aim, one alone at 1.0 or less: {met(most <= 1)} ({most:.2f})."
    )
    names = {
        "pack": "`mica store pack`",
        "compress": "`zstd -3` of the layers' images",
        "unpack": "`mica store unpack`",
        "inflate": "`zstd -d`",
    }
    rows = []
    for who, cost in costs.items():
        peer = costs["compress" if who in ("pack", "compress") else "inflate"]
        ratios = [cost["cpu"] / peer["cpu"], cost["wall"] / peer["wall"]]
        row = [names[who], f"{cost['cpu']:.1f}", f"{cost['wall']:.1f}"]
        rows.append([*row, *(f"{ratio:.2f}" for ratio in ratios), f"{cost['rss'] / 2**20:.0f}"])
    for name, cost in result["peers"].items():
        if "reason" in cost:
            continue
        peer = costs["compress"]
        ratios = [cost["cpu"] / peer["cpu"], cost["wall"] / peer["wall"]]
        row = [name, f"{cost['cpu']:.1f}", f"{cost['wall']:.1f}"]
        rows.append([*row, *(f"{ratio:.2f}" for ratio in ratios), ""])
    title = f"{result['bytes'] / 1e9:.1f} GB"
    header = [title, "CPU, s", "wall, s", "CPU ratio", "wall ratio", "memory, MiB"]
    parts.append(table(header, rows))
    most = max(costs[who]["rss"] for who in ("pack", "unpack")) / MIB
    parts.append(f"Aim, memory of 64 MiB or less: {met(most <= 64)} ({most:.0f}).")
    return "\n\n".join(parts)


def packed_snapshots(result: dict) -> str:
    names = {
        "disks of_one": "four of one sandbox, one after the other",
        "disks of_many": "of three sandboxes that installed the same in other orders",
        "memories of_one": "four of one sandbox, with memory",
        "memories of_many": "of three sandboxes, with memory",
    }
    rows = []
    for kind, sizes in result["sizes"].items():
        before, added = ([size[what] / 1e6 for size in sizes] for what in ("before", "added"))
        each = [", ".join(f"{size:.1f}" for size in column) for column in (before, added)]
        rows.append([names[kind], *each, f"{sum(added) / sum(before):.2f}"])
    header = ["snapshots", "MB on disk, each", "MB that each adds, packed", "ratio"]
    return "\n\n".join([source(result), table(header, rows)])


def served(result: dict) -> str:
    parts = [f"{source(result)} Medians of {result['rounds']} interleaved rounds."]
    names = {
        "whole": "the image is whole",
        "served": "it is packed, and its layers are served",
        "unpacked": "it is packed, and unpacked first",
    }
    whole = result["costs"]["whole"]["wall"]
    rows = []
    for who, name in names.items():
        wall = result["costs"][who]["wall"]
        rows.append([name, f"{wall * 1000:.0f}", f"{wall / whole:.1f}"])
    title = f"a compiler's first output, {result['size'] / 1e6:.0f} MB of layers"
    parts.append(table([title, "ms", "ratio"], rows))
    served, plain = (line.replace(" us ", " µs ").split(": ")[1] for line in result["pages"])
    parts.append(f"Bytes in the server's memory: {served}. Those of a file on this disk: {plain}.")
    page = float(served.split()[0])
    parts.append(f"Aim, 10 µs a page that is here: {met(page <= 10)} ({page:.1f}).")
    return "\n\n".join(parts)


# Of a start over a slow line: seconds, and the part of the archives that is received.
LAZY_AIMS = {"lazy": 1.5, "ordered": 0.8}
RECEIVED_AIM = 0.05


def lazy(result: dict) -> str:
    parts = [f"{source(result)} Medians of {result['rounds']} interleaved rounds."]
    names = {
        "whole": "all of it is pulled first",
        "lazy": "`--lazy`",
        "ordered": "`--lazy`, with the order of an earlier start",
    }
    whole = result["costs"]["whole"]["wall"]
    rows = []
    for who, cost in result["costs"].items():
        wall, received = cost["wall"], result["received"][who]
        part = f"{received / result['archives'] * 100:.1f}"
        name = names.get(who, who)
        rows.append([name, f"{wall:.2f}", f"{wall / whole:.3f}", f"{received / 1e6:.1f}", part])
    for who, reason in result.get("missing", {}).items():
        rows.append([f"{who}: not run, {reason}", "", "", "", ""])
    title = f"`python3 -c 'import json'`, {result['size'] / 1e6:.0f} MB of layers"
    header = [title, "s", "ratio", "MB received", "% of the archives"]
    parts.append(table(header, rows))
    aims = []
    for who, most in LAZY_AIMS.items():
        wall = result["costs"][who]["wall"]
        aims.append(f"Aim, {names[who]} in {most} s: {met(wall <= most)} ({wall:.2f}).")
    for who in LAZY_AIMS:
        share = result["received"][who] / result["archives"]
        aims.append(
            f"Aim, {names[who]} receives {RECEIVED_AIM:.0%} at most: {met(share <= RECEIVED_AIM)} ({share:.1%})."
        )
    parts.append(" ".join(aims))
    if "pages" in result:
        lines = [
            result["pages"]["fuse"][0].replace("served:", "by FUSE:"),
            *result["pages"]["asked"],
        ]
        lines = [line.replace(" us ", " µs ").split(": ") for line in lines]
        parts.append(table(["bytes in the server's memory", "each"], lines))
    return "\n\n".join(parts)


def travel(result: dict) -> str:
    ranges = result["ranges"]
    parts = [f"{source(result)} A layer of {ranges['bytes'] / 1e9:.1f} GB."]
    aims = []
    for rate, contenders in ranges["rates"].items():
        line = contenders["curl, 8 connections"]["wall"]
        rows = []
        for who, cost in contenders.items():
            speed = ranges["bytes"] / cost["wall"] / 1e6
            name = f"`{who}`" if who.startswith("mica") else who
            row = [name, f"{cost['wall']:.1f}", f"{speed:.0f}", f"{line / cost['wall']:.2f}"]
            rows.append([*row, f"{cost['cpu']:.1f}", f"{cost['rss'] / MIB:.0f}"])
        megabytes = int(rate) // 1_000_000
        header = [f"{megabytes} MB/s a connection", "wall, s", "MB/s", "of the line"]
        parts.append(table([*header, "CPU, s", "memory, MiB"], rows))
        # Where this machine converts more slowly than eight connections send, it can't be faster than from a file.
        share = line / contenders["mica pull"]["wall"]
        local = contenders["mica load"]["wall"] / contenders["mica pull"]["wall"]
        aims.append(
            f"Aim, 0.9 of what eight connections of {megabytes} MB/s carry: {met(share >= 0.9)} "
            f"({share:.2f}; at {local:.2f} of the speed from a file)."
        )
    parts.append(" ".join(aims))
    return "\n\n".join(parts)


TABLES = {
    "converted": converted,
    "lazy": lazy,
    "travel": travel,
    "packed": packed,
    "packed_snapshots": packed_snapshots,
    "served": served,
    "ext4": ext4,
    "convert": convert,
    "jail": jail,
    "merge": merge,
    "replica": replica,
    "fs": fs,
    "share": share,
    "dax": dax,
}
