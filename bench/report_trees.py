"""The tables of filesystems in memory."""

from bench.table import MIB, met, source, table

# Times of tmpfs that each step may take.
AIMS = {"clone": 1.2, "status": 1.3}
PROJECT_AIMS = {"clone": 1.2, "build": 1.15, "status": 1.3}

# What a server's memory may be: times the files' bytes, and bytes beside them.
MEMORY_AIM = (1.1, 16 * MIB)

STEPS = ("clone", "status", "status again", "remove")


def trees(result: dict) -> str:
    contenders = result["contenders"]
    base = contenders["tmpfs"]
    rows = [
        [
            who,
            *(f"{of[step] * 1e3:.0f} ({of[step] / base[step]:.2f})" for step in STEPS),
            f"{result['written'] / of['writes'] / 1e6:,.0f}",
        ]
        for who, of in contenders.items()
    ]
    columns = ["", *(f"{step}, ms" for step in STEPS), f"{result['piece']:,} bytes a write, MB/s"]
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
    about = (
        f"{result['sources']}; median of {result['rounds']} interleaved rounds, and beside it "
        f"how many times tmpfs's. {source(result)}"
    )
    return "\n\n".join(
        [
            about,
            table(columns, rows),
            f"Aims: {'; '.join(aims)}.",
            table(["memory of the server, MiB", "empty", "files", "with them", "removed"], held),
        ]
    )


def mounted(result: dict) -> str:
    base, *others = result["contenders"]
    rows = []
    for workload, runs in result["workloads"].items():
        median = runs[base]["median"]
        ratios = [f"{runs[who]['median'] / median:.2f}" for who in others]
        rows.append([f"`{workload}`", f"{median * 1e3:.1f}", *ratios])
    means = [f"**{result['geometric_mean'][who]:.2f}**" for who in others]
    rows.append(["**geometric mean**", "", *means])
    about = (
        f"Medians of {result['iterations']} iterations, and how many times the kernel's. "
        f"{source(result)} {result['minutes']:.0f} minutes."
    )
    return "\n\n".join([about, table(["workload", f"{base}, ms", *others], rows)])


def projects(result: dict) -> str:
    return "\n\n".join(project(name, of) for name, of in result["projects"].items())


def project(name: str, result: dict) -> str:
    built = {who: of for who, of in result["contenders"].items() if "failed" not in of}
    contenders = {who: seconds(of) for who, of in built.items()}
    base, ours = contenders["tmpfs"], contenders["mica memfs"]
    rows = [
        [
            who,
            *(f"{of[step]:.2f} ({of[step] / base[step]:.2f})" for step in base),
            *amounts(built[who]),
        ]
        for who, of in contenders.items()
    ]
    rows += [
        [who, f"{of['clone']:.2f} ({of['clone'] / base['clone']:.2f})", "does not build", *[""] * 4]
        for who, of in result["contenders"].items()
        if who not in built
    ]
    columns = ["", *(f"{step}, s" for step in base), "server at most, MiB", "page cache, MiB"]
    aims = [
        f"{step} at {most}: {met(ours[step] / base[step] <= most)}"
        for step, most in PROJECT_AIMS.items()
    ]
    memory = result["contenders"]["mica memfs"]
    times, more = MEMORY_AIM
    aims.append(
        f"memory at {times} of the files and {more // MIB} MiB: "
        f"{met(memory['peak'] <= times * memory['bytes'] + more)}"
    )
    about = (
        f"**{name}** ({result['source']}): {memory['files']:,.0f} files once it is built, "
        f"{memory['bytes'] / MIB:.0f} MiB; medians of {result['rounds']} rounds, of building "
        f"{result['builds']}, and beside each how many times tmpfs's. {source(result)}"
    )
    return "\n\n".join([about, table(columns, rows), f"Aims: {'; '.join(aims)}."])


def seconds(of: dict) -> dict[str, float]:
    """The article's steps: building is configuring too."""
    return {
        "clone": of["clone"],
        "build": of["configure"] + of["build"],
        "status": of["status of all"],
        "remove": of["remove all"],
    }


def amounts(of: dict) -> list[str]:
    """Memory of the server, and what the kernel keeps of files."""
    return [f"{of['peak'] / MIB:.0f}" if of["peak"] else "", f"{of['cached'] / MIB:.0f}"]


# What deploying a root may take of untarring it, and what starting one may take.
UNTARRED_AIM = 1 / 50
READY_AIM = 1e-3


def roots(result: dict) -> str:
    of = result["deployed"]
    untarred, ready = of["tar xf"]["whole"], of["mica run"]["whole"]
    rows = [
        [f"`{who}`", f"{way['whole'] * 1e3:.1f}", f"{way['whole'] / untarred:.3f}"]
        for who, way in of.items()
    ]
    phases = [name for name in of["mica run"] if name not in ("whole", "runs")]
    split = ", ".join(f"{name} {of['mica run'][name] * 1e3:.1f}" for name in phases)
    lives = result["lives"]
    remains = {kind: len(left) for kind, left in lives["left"].items()}
    said = ", ".join(f"{number} {kind}" for kind, number in remains.items())
    parts = [
        (
            f"{source(result)} A Debian of {result['image']['entries']:,} entries, "
            f"{result['image']['bytes'] / MIB:.0f} MiB; medians of {result['rounds']} interleaved rounds."
        ),
        table(["until a root is there", "ms", "to `tar xf`"], rows),
        (
            f"Phases of `mica run`, ms: {split}. "
            f"Aim, 1/50 of untarring: {met(ready <= untarred * UNTARRED_AIM)} (1/{untarred / ready:.0f}). "
            f"Aim, 1 ms: {met(ready <= READY_AIM)} ({ready * 1e3:.1f})."
        ),
    ]
    for who, ways in result["whole"].items():
        base = ways.get("crun run", ways["mica run"])["median"]
        rows = [
            [f"`{way}`", f"{found['median'] * 1e3:.1f}", f"{found['median'] / base:.2f}"]
            for way, found in ways.items()
        ]
        parts.append(table([f"`true`, whole, by {who}", "ms", "ratio"], rows))
        if "crun run" in ways:
            ratio = ways["mica run"]["median"] / base
            parts.append(f"Aim, crun's time: {met(ratio <= 1)} ({ratio:.2f}).")
    parts.append(
        f"{lives['count']:,} made and removed in {lives['seconds']:.0f} s. Aim, nothing left: "
        f"{met(not any(remains.values()))} ({said}); memory in use {lives['memory'] / MIB:+.1f} MiB."
    )
    return "\n\n".join(parts)


TABLES = {"mounted": mounted, "roots": roots, "trees": trees, "tree-projects": projects}
