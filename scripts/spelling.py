"""Whether commands of `mica` in a piece of a shell are spelt as `mica --help` has them."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

Command = tuple[str, ...]

# What follows their first argument is another command.
LEADING = {"run", "create", "exec"}
OPERATORS = "();<>|&\n"


class Usage(NamedTuple):
    below: list[str]  # the commands below a command
    options: dict[str, bool]  # whether an option takes the next word as its value


class SpellingError(Exception):
    """There is no such command or option."""


@cache
def usage(mica: Path, command: Command) -> Usage:
    done = subprocess.run(
        [mica, *command, "--help"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    _, _, below = done.partition("\nCommands:\n")
    options: dict[str, bool] = {}
    for names in re.findall(r"^ {2,6}(-[\w-]+(?:, --[\w-]+)?(?: <)?)", done, re.MULTILINE):
        for name in re.findall(r"-[\w-]+", names):
            options[name] = names.endswith("<")
    names = re.findall(r"^  ([a-z][a-z0-9-]*)\b", below.partition("\n\n")[0], re.MULTILINE)
    return Usage([name for name in names if name != "help"], options)


def commands(mica: Path, command: Command = ()) -> Iterator[Command]:
    """All that have none below them."""
    below = usage(mica, command).below
    if not below:
        yield command
    for name in below:
        yield from commands(mica, (*command, name))


def check(mica: Path, code: str) -> Iterator[Command]:
    """The commands of `mica` in a piece of a shell; fails for one that there is not."""
    words = list(split(code))
    for number, word in enumerate(words):
        if word == "mica":
            yield resolve(mica, words[number + 1 :])


def split(code: str) -> Iterator[str]:
    """The words and operators of a piece of a shell, or those of its lines that are one."""
    code = re.sub(r"(?m)(^|\s)#\s.*$", "", code.replace("\\\n", " "))
    for piece in [code] if is_shell(code) else filter(is_shell, code.splitlines(keepends=True)):
        yield from lexer(piece)


def lexer(code: str) -> shlex.shlex:
    words = shlex.shlex(code, posix=True, punctuation_chars=OPERATORS)
    words.whitespace_split = True
    words.whitespace = " \t"
    words.commenters = ""
    return words


def is_shell(code: str) -> bool:
    with suppress(ValueError):
        return bool(list(lexer(code))) or True
    return False


def resolve(mica: Path, words: list[str]) -> Command:
    """The command that begins with these words."""
    command: Command = ()
    known = usage(mica, command)
    rest = iter(words)
    for word in rest:
        if word == "--" or word[0] in OPERATORS:
            break
        if word.startswith("-"):
            option = word.partition("=")[0]
            if re.fullmatch(r"--[a-z][a-z0-9-]+", option) and option not in known.options:
                raise SpellingError(f"`mica {' '.join(command)}` has no option `{option}`")
            if known.options.get(word):
                next(rest, None)
        elif word in known.below:
            command += (word,)
            known = usage(mica, command)
        elif known.below:
            if re.fullmatch(r"[a-z][a-z0-9-]*", word):
                raise SpellingError(f"`mica {' '.join((*command, word))}` is no command")
            break
        elif command[0] in LEADING:
            break
    return command
