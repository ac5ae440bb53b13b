"""What code that was run has given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class OutputMessage:
    """A piece of output."""

    line: str
    timestamp: int
    """Nanoseconds since 1970, on this machine's clock."""
    error: bool = False
    """Whether it is of stderr."""


@dataclass(frozen=True)
class ExecutionError:
    """An exception that the code did not catch."""

    name: str
    value: str
    traceback: str


@dataclass(frozen=True)
class Result:
    """The value of the last expression, in the formats that it has."""

    text: str | None = None
    html: str | None = None
    markdown: str | None = None
    svg: str | None = None
    latex: str | None = None
    png: str | None = None
    """In base64."""
    jpeg: str | None = None
    """In base64."""

    def formats(self) -> Iterator[str]:
        """Names of the formats."""
        return (name for name, value in vars(self).items() if value is not None)


@dataclass
class Logs:
    """Output, in pieces as they came."""

    stdout: list[str] = field(default_factory=list[str])
    stderr: list[str] = field(default_factory=list[str])


@dataclass
class Execution:
    """Code that was run."""

    results: list[Result] = field(default_factory=list[Result])
    logs: Logs = field(default_factory=Logs)
    error: ExecutionError | None = None
    execution_count: int | None = None

    @property
    def text(self) -> str | None:
        """The text of the last expression's value; None if it was None, or there was none."""
        return self.results[0].text if self.results else None
