"""Exceptions by kind: `kind` is the protocol's word for it, `hint` the next step where mica knows one."""

from __future__ import annotations

import errno as numbers
import os
from typing import Any, cast


class SandboxException(Exception):
    """Anything that mica, a sandbox's owner or a guest refused or failed to do."""

    def __init__(self, message: str, *, kind: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Without `__init__`, which takes other arguments than the message in some of them.
        return _unpickled, (type(self), self.args), self.__dict__


def _unpickled(kind: type[SandboxException], args: tuple[Any, ...]) -> SandboxException:
    return kind.__new__(kind, *args)


class NotFoundException(SandboxException):
    """Nothing has this name."""


class SandboxNotFoundException(NotFoundException):
    """No sandbox has this name or ID."""


class FileException(SandboxException):
    """An operation on a file failed; `errno` is the system's number, 0 if the error is not its."""

    def __init__(self, message: str, *, errno: int = 0) -> None:
        super().__init__(message, kind="file")
        self.errno = errno


class FileNotFoundException(FileException, NotFoundException):
    """The file is not there."""


class FileExistsException(FileException):
    """The file is there already."""


class PermissionException(FileException):
    """The user may not do this to the file."""


class NameInUseException(SandboxException):
    """Something else has this name."""


class InUseException(SandboxException):
    """The sandbox runs, or another one uses the file, the port or the image."""


class SandboxNotRunningException(SandboxException):
    """The sandbox does not run, is about to end, or is paused."""


class DisconnectedException(SandboxNotRunningException):
    """The sandbox, its owner or mica ended, or is about to, before the request was carried out."""


class InvalidArgumentException(SandboxException):
    """The request is wrong wherever it is made."""


class UnsupportedException(SandboxException):
    """The request is not possible for this sandbox, snapshot or backend."""


class GuestException(SandboxException):
    """The guest failed: it did not boot, broke the protocol, or lost something."""


class CancelledException(SandboxException):
    """The request was cancelled."""


class TimeoutException(SandboxException):
    """The command's time was over, a guest was silent, or something else did not happen in time."""


class DamagedException(SandboxException):
    """A file of the store, a snapshot or a disk is damaged."""


class NotEnoughSpaceException(SandboxException):
    """A disk is full."""


class UnreachableException(SandboxException):
    """A registry can't be reached, or does not serve at the moment."""


class HostException(SandboxException):
    """The host failed, or lacks something that is needed."""


class CommandStartException(SandboxException):
    """The command could not be started; `reason` and `errno` say why."""

    def __init__(self, message: str, *, reason: str, errno: int) -> None:
        super().__init__(message, kind="start")
        self.reason = reason
        self.errno = errno


class ProtocolException(SandboxException):
    """The other side speaks another version of the protocol, or broke its rules."""


# The kinds of sdk/cases.json: of `mica serve`, and the words of owners.
KINDS: dict[str, type[SandboxException]] = {
    "not_found": NotFoundException,
    "name_in_use": NameInUseException,
    "in_use": InUseException,
    "not_running": SandboxNotRunningException,
    "invalid": InvalidArgumentException,
    "unsupported": UnsupportedException,
    "guest": GuestException,
    "disconnected": DisconnectedException,
    "cancelled": CancelledException,
    "timed_out": TimeoutException,
    "damaged": DamagedException,
    "full": NotEnoughSpaceException,
    "unreachable": UnreachableException,
    "host": HostException,
    "too_long": InvalidArgumentException,
    "ending": DisconnectedException,
    "paused": SandboxNotRunningException,
    "silent": TimeoutException,
    "unlimited": UnsupportedException,
    "not_frozen": UnsupportedException,
    "machine": HostException,
    "lost": DisconnectedException,
    "unwritten": HostException,
}

# Reasons for which a sandbox is lost that say more than that.
LOST: dict[str, type[SandboxException]] = {
    "boot_failed": GuestException,
    "protocol": GuestException,
    "silent": TimeoutException,
    "unflushed": GuestException,
}

ERRNOS: dict[int, type[FileException]] = {
    numbers.ENOENT: FileNotFoundException,
    numbers.EEXIST: FileExistsException,
    numbers.EACCES: PermissionException,
    numbers.EPERM: PermissionException,
    numbers.EROFS: PermissionException,
}


def of_failed(message: dict[str, Any]) -> SandboxException:
    """The exception for a message `failed`."""
    kind = str(message.get("kind") or "")
    text = str(message.get("message") or kind or "the request failed")
    start = message.get("start")
    if kind == "start" and isinstance(start, dict):
        return _of_start(cast("dict[str, Any]", start), text)
    exception = KINDS.get(kind, SandboxException)
    lost = message.get("lost")
    if kind == "lost" and isinstance(lost, dict):
        lost = cast("dict[str, Any]", lost)
        text = f"{text}\n{lost.get('console') or ''}".rstrip()
        exception = LOST.get(_word(lost.get("reason")), exception)
    hint = message.get("hint")
    return exception(text, kind=kind or None, hint=str(hint) if hint else None)


def of_file(what: str, path: str, errno: int, message: str) -> SandboxException:
    """The exception for an operation on a file that failed."""
    said = message or (os.strerror(errno) if errno else "failed")
    text = f"cannot {what} `{path}`: {said}"
    if errno in (numbers.ENOSPC, numbers.EDQUOT):
        return NotEnoughSpaceException(text, kind="full")
    return ERRNOS.get(errno, FileException)(text, errno=errno)


def _word(reason: Any) -> str:
    """The word of a reason, which may have more to say."""
    return next(iter(cast("Any", reason)), "") if isinstance(reason, dict) else str(reason)


def _of_start(start: dict[str, Any], text: str) -> SandboxException:
    reason = str(start.get("reason") or "")
    message = str(start.get("message") or text)
    errno = int(start.get("errno") or 0)
    return CommandStartException(message, reason=reason, errno=errno)
