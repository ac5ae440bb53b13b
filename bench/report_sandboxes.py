"""Tables of what sandboxes take while they are used."""

from bench.table import MIB, met, source, table

WHERE = {"host": "this machine's own kernel", "kvm": "our monitor", "qemu": "QEMU, emulated"}
# What is beside each way through a sandbox.
PEERS = {
    "exec cat": "pipe",
    "exec, in": "pipe",
    "exec, out": "pipe",
    "cp, in": "tar",
    "cp, out": "tar",
}


def heading(found: dict, backend: str) -> str:
    nested = backend == "kvm" and found["emulated"]
    where = WHERE[backend] + (", in an emulated machine with one processor" if nested else "")
    load = found["machine"]["load_before"]
    return f"**{where}**. {source(found)} Load {load:.1f} before the first round."


def streams(result: dict) -> str:
    parts = []
    for backend, found in result["backends"].items():
        contenders, rows = found["contenders"], []
        has_before = any(who.startswith("before") for who in contenders)
        for way, peer in PEERS.items():
            mine, base = contenders[f"now: {way}"], contenders[peer]
            row = [f"`{way}`", speed(found, base), speed(found, mine)]
            row.append(f"{mine['median'] / base['median']:.1f}")
            if has_before:
                before = contenders[f"before: {way}"]
                row += [speed(found, before), f"{mine['median'] / before['median']:.2f}"]
            rows.append(row)
        header = ["MB/s, median (slowest to fastest)", "without a sandbox", "now", "time, to that"]
        header += ["before", "time, now to before"] if has_before else []
        rounds = f"{found['rounds']} interleaved rounds of {found['mib']} MiB."
        parts += [f"{heading(found, backend)} {rounds}", table(header, rows)]
    return "\n\n".join(parts)


def speed(found: dict, contender: dict) -> str:
    rates = [found["mib"] * MIB / 1e6 / contender[key] for key in ("median", "max", "min")]
    return f"{rates[0]:,.0f} ({rates[1]:,.0f}\N{EN DASH}{rates[2]:,.0f})"


def lives(result: dict) -> str:
    parts = []
    for backend, found in result["backends"].items():
        rows = []
        for who, ways in found["ways"].items():
            for at_once, way in ways.items():
                times = [
                    f"{phase[key] * 1e3:,.0f}"
                    for phase in way["phases"].values()
                    for key in ("p50", "p99")
                ]
                pss = way.get("memory", {}).get("pss")
                rows.append(
                    [
                        f"`{who}`, {at_once} at a time",
                        *times,
                        f"{pss['p50'] / MIB:.1f}" if pss else "",
                    ]
                )
        names = [
            f"{phase} {key}"
            for phase in ("create", "use", "remove", "whole")
            for key in ("p50", "p99")
        ]
        count = found["count"]
        parts.append(f"{heading(found, backend)} {count} sandboxes each way.")
        parts.append(table(["milliseconds", *names, "PSS, MiB"], rows))
        remains = {kind: len(left) for kind, left in found["left"].items()}
        said = ", ".join(f"{number} {kind}" for kind, number in remains.items())
        parts.append(f"Aim, nothing left behind: {met(not any(remains.values()))} ({said}).")
    return "\n\n".join(parts)


def limits(result: dict) -> str:
    parts = []
    for backend, found in result["backends"].items():
        back = found["given_back"]
        returned = (back["full"] - back["after"]) / back["fill"]
        held = [f"{back[key] / MIB:,.0f}" for key in ("idle", "full", "after")]
        parts += [
            heading(found, backend),
            (
                f"A guest that writes {back['fill'] / MIB:.0f} MiB and frees them: PSS {held[0]} MiB "
                f"idle, {held[1]} full, {held[2]} after {back['seconds']:.1f} s: {returned:.0%} is "
                f"given back."
            ),
        ]
        rows, worst = [], 0.0
        for name, states in found["loads"].items():
            ratio = states["loaded"]["p99"] / states["idle"]["p99"]
            worst = max(worst, ratio)
            times = [
                f"{states[state][key] * 1e3:,.1f}" for state in states for key in ("p50", "p99")
            ]
            rows.append([name, *times, f"{ratio:.2f}"])
        header = ["load, ms of its neighbours", "idle p50", "idle p99", "loaded p50", "loaded p99"]
        parts.append(table([*header, "p99 to p99"], rows))
        parts.append(f"Aim, twice at most: {met(worst <= 2)} ({worst:.2f}).")
    return "\n\n".join(parts)


def soak(result: dict) -> str:
    rows = [[what, f"{count:,}"] for what, count in sorted(result["counts"].items())]
    rows += [["errors", str(len(result["errors"]))], ["left behind", str(len(result["left"]))]]
    return "\n\n".join(
        [
            (
                f"{source(result)} {result['minutes']:.0f} minutes, {result['jobs']} jobs, seed "
                f"{result['seed']}, on {WHERE.get(result['backend'], result['backend'])}; faults: "
                f"{', '.join(result['faults']) or 'kill -9 alone'}."
            ),
            table(["what", "times"], rows),
        ]
    )


def sdk(result: dict) -> str:
    parts = []
    for backend, found in result["backends"].items():
        trips = found["round trip"]
        base = trips["mica exec"]["p50"]
        rows = [
            [who, f"{of['p50'] * 1e3:.2f}", f"{of['p99'] * 1e3:.2f}", f"{of['p50'] / base:.2f}"]
            for who, of in trips.items()
        ]
        count = trips["mica exec"]["count"]
        header = [f"`true`, {count:,} times", "p50, ms", "p99, ms", "p50, to `mica exec`"]
        more = []
        if looks := found.get("looks"):
            more.append(looks_of(looks))
        if fork := found.get("fork"):
            more.append(
                f"`fork({found['copies']})` until the last copy has run a command: "
                f"{fork['median']:.2f} s, median of {len(fork['runs'])}."
            )
        parts += [heading(found, backend), table(header, rows), lives_of(found["lives"]), *more]
        if of := found.get("bytes"):
            size, copy = found["mib"] * MIB, of["cp"]["median"]
            rows = [
                [f"`{who}`", f"{size / 1e6 / way['median']:,.0f}", f"{way['median'] / copy:.1f}"]
                for who, way in of.items()
            ]
            parts.append(table([f"{found['mib']} MiB", "MB/s", "time, to `cp`"], rows))
    return "\n\n".join(parts)


def looks_of(looks: dict) -> str:
    """Looks for a file a second by client, one after the other."""
    ours = looks["Python"]["p50"]
    rows = [
        [
            who,
            f"{1 / of['p50']:,.0f}",
            f"{of['p50'] * 1e3:.2f}",
            f"{of['p99'] * 1e3:.2f}",
            f"{of['p50'] / ours:.2f}",
        ]
        for who, of in looks.items()
    ]
    count = looks["Python"]["count"]
    header = [
        f"`files.exists`, {count:,} times",
        "a second",
        "p50, ms",
        "p99, ms",
        "p50, to Python",
    ]
    return table(header, rows)


def lives_of(rates: dict) -> str:
    """Sandboxes a second by client, made, used and ended, and how many at once."""
    ours = rates["Python"]

    def shown(rate: float | None, to: float = 1, digits: int = 1) -> str:
        return "failed" if rate is None else f"{rate / to:.{digits}f}"

    rows = [
        [who, *map(shown, of.values()), *(shown(of[n], ours[n], 2) for n in ours)]
        for who, of in rates.items()
    ]
    header = ["sandboxes a second from one process"]
    header += [f"{n} at once" for n in ours] + [f"{n} at once, to Python" for n in ours]
    return table(header, rows)


TABLES = {"sdk": sdk, "streams": streams, "lives": lives, "limits": limits, "soak": soak}
