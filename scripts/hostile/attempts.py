"""The attempts: attacker, attempt, and the required outcome."""

from collections.abc import Callable
from dataclasses import dataclass


class NotHereError(Exception):
    """This machine lacks what the attempt needs."""


@dataclass
class Attempt:
    """One attempt, as the table has it."""

    who: str
    what: str
    happened: str
    stopped_by: str
    function: Callable


ATTEMPTS = []


def attempt(who, what, happened, stopped_by):
    """Marks a function of a world that fails unless what `happened` says has happened."""

    def mark(function):
        ATTEMPTS.append(Attempt(who, what, happened, stopped_by, function))
        return function

    return mark
