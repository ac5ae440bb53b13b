"""Parts of tables, from raw results."""

MIB = 2**20


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; all columns but the first are right-aligned."""
    rule = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])


def met(value: bool) -> str:
    return "met" if value else "**not met**"


def source(result: dict) -> str:
    """Where and when."""
    machine = result["machine"]
    return (
        f"Measured {result['date']} at {result['commit']} on {machine['cpus']} cores of "
        f"{machine['processor']}, {machine['memory_gib']} GiB, Linux {machine['kernel']}."
    )
