"""Values that a caller gives, checked before anything is sent."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, cast

from micabox.errors import InvalidArgumentException

# A century: what others add to it is still a time.
_MOST_SECONDS = 3_155_760_000


def invalid(message: str) -> InvalidArgumentException:
    """What is raised for a value that no request can have."""
    return InvalidArgumentException(message, kind="invalid")


def _wrong(what: str, value: object, expected: str) -> InvalidArgumentException:
    return invalid(f"{what} is {expected}, and not of type {type(value).__name__}")


def text(value: Any, what: str) -> str:
    """A string, without NUL."""
    if not isinstance(value, str):
        raise _wrong(what, value, "a string")
    if "\0" in value:
        raise invalid(f"{what} has a NUL byte")
    return value


def texts(values: Any, what: str) -> list[str]:
    """Several strings."""
    if not isinstance(values, Iterable):
        raise _wrong(what, values, "a list of strings")
    return [text(value, f"a word of {what}") for value in cast("Iterable[Any]", values)]


def binary(value: Any, what: str) -> memoryview:
    """Bytes; of a string, its UTF-8."""
    if isinstance(value, str):
        try:
            return memoryview(value.encode())
        except UnicodeEncodeError as error:
            raise invalid(f"{what} is not UTF-8: {error}") from None
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise _wrong(what, value, "bytes or a string")
    view = memoryview(cast("bytes", value))
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())


def whole(value: Any, what: str, least: int, most: int) -> int:
    """A whole number from `least` to `most`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise _wrong(what, value, "a whole number") from None
    if isinstance(value, bool):
        raise _wrong(what, value, "a whole number")
    if not least <= number <= most:
        raise invalid(f"{what} is a number from {least} to {most}")
    return number


def seconds(value: Any, what: str) -> float:
    """A duration, up to a century."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _wrong(what, value, "a number of seconds")
    number = cast("float", value)
    if not 0 <= number <= _MOST_SECONDS:  # nor NaN
        raise invalid(f"{what} is a number of seconds from 0 to {_MOST_SECONDS}")
    return float(number)


def milliseconds(value: float) -> int:
    """A duration for a request. One that is begun counts: 0 is no limit."""
    # Not one more for what a fraction in binary has too much.
    return math.ceil(round(value * 1000, 6))


def limit(value: Any) -> float | None:
    """A timeout in seconds; None for 0 or None, no limit."""
    return None if value is None else seconds(value, "a timeout") or None


def pid(value: Any) -> int:
    """A process ID."""
    return whole(value, "a PID", 1, 0x7FFF_FFFF)


def variables(values: Any, what: str) -> dict[str, str]:
    """Names, without `=`, and their values; numbers become strings."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise _wrong(what, values, "a mapping")
    checked: dict[str, str] = {}
    for name, value in cast("Mapping[Any, Any]", values).items():
        if not text(name, f"a name in {what}") or "=" in name:
            raise invalid(f"a name in {what} is not empty, and has no `=`")
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        checked[name] = text(str(value) if is_number else value, f"`{name}` in {what}")
    return checked
