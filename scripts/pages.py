"""Blocks of code on a page, what comments above them have, and the commands of a transcript with their output."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

BLOCK = re.compile(
    r"(?P<comments>(?:^<!-- [^\n]* -->\n+)*)"
    r"(?:^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<fenced>.*?)^(?P=indent)```$"
    r"|(?<=\n\n)(?P<indented> {4}[^\n]*\n(?:\n*(?: {4}[^\n]*\n))*))",
    re.MULTILINE | re.DOTALL,
)
COMMENT = re.compile(r"^<!-- ([a-z ]+)(?:: (.+))? -->$", re.MULTILINE)

# What is another in each run, and on each machine.
VARYING = [
    (r"\b(?:[0-9a-f]{12,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b", "ID"),
    (r"\b(?:[A-Z][a-z]{2} [ \d]\d|\d\d/[A-Z][a-z]{2}/\d{4}) +\d\d:\d\d(?::\d\d)?\b", "TIME"),
    (r"\b\d\d:\d\d(?::\d\d)?\b", "TIME"),
    (r"\b\d+ (?:second|minute|hour)s?\b", "TIME"),
    (r"\b\d+(?:\.\d+)+\b", "NUMBER"),
    (r"\b(?:\d+|NUMBER) ?(?:%|(?:B|[kMG]B|ms|s|[KMG])\b)", "SIZE"),
    (r"\s+", " "),
]


class Block(NamedTuple):
    line: int
    language: str
    comments: dict[str, str]
    code: str


class Step(NamedTuple):
    """A command of a transcript, and what it prints."""

    command: str
    output: str


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in BLOCK.finditer(text):
        kind = "fenced" if found["indented"] is None else "indented"
        line = text.count("\n", 0, found.start(kind)) + 1
        comments = dict(COMMENT.findall(found["comments"]))
        yield Block(line, found["language"] or "", comments, textwrap.dedent(found[kind]))


def steps(code: str) -> list[Step]:
    """The commands of a transcript; none of other code."""
    if not code.startswith("$ "):
        return []
    pieces = re.split(r"^\$ ((?:.*\\\n)*.*)\n", code, flags=re.MULTILINE)
    return [Step(*step) for step in zip(pieces[1::2], pieces[2::2], strict=True)]


def is_like(shown: str, printed: str) -> bool:
    """Whether a page shows what a command has printed. `...` stands for any lines, and within a line for any text."""
    pattern = ""
    for line in map(plain, shown.splitlines()):
        if line == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(map(re.escape, re.split(r"\.\.\.|…", line))) + "\n"
    lines = [plain(line) + "\n" for line in printed.splitlines()]
    return re.fullmatch(pattern, "".join(lines)) is not None


def plain(line: str) -> str:
    for pattern, name in VARYING:
        line = re.sub(pattern, name, line)
    return line.strip()
