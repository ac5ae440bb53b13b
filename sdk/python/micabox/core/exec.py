"""The request that starts a command in a sandbox."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from micabox import arguments
from micabox.errors import ProtocolException
from micabox.model.command import PtySize
from micabox.protocol.replies import encode_text

# Between the stop signal and SIGKILL.
_GRACE = 2.0


class Defaults:
    """What a sandbox's commands are given unless the caller wants something else."""

    def __init__(self, record: dict[str, Any]) -> None:
        self._record = dict[str, Any](record.get("defaults") or {})

    def path(self, path: str) -> str:
        """A path from the working directory as one from the root."""
        path = arguments.text(path, "a path")
        return posixpath.join(str(self._record.get("workdir") or "/"), path)

    def user(self, user: str | None) -> str:
        """This user, or the default."""
        if user is None:
            return str(self._record.get("user") or "")
        return arguments.text(user, "a user")

    def exec(
        self,
        argv: Sequence[str],
        *,
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        size: PtySize | None = None,
        stdin: bool = False,
    ) -> dict[str, Any]:
        """A request to run a program."""
        env = dict(self._record.get("env") or []) | arguments.variables(envs, "envs")
        limit = arguments.limit(timeout)
        own = self.path("")
        workdir = own if cwd is None else self.path(cwd)
        return {
            "type": "exec",
            "argv": [encode_text(word) for word in arguments.texts(argv, "cmd")],
            "env": [[encode_text(name), encode_or_keep(value)] for name, value in env.items()],
            "workdir": encode_text(workdir),
            # The image may lack its own.
            "make_workdir": workdir == own,
            "user": self.user(user),
            "tty": terminal(size) if size else None,
            "stdin": "frames" if stdin else "null",
            "stdout": "frames",
            "stderr": "frames",
            "timeout": arguments.milliseconds(limit or 0),
            "grace": arguments.milliseconds(_GRACE) if limit else 0,
        }


def terminal(size: PtySize) -> dict[str, int]:
    """A terminal's size, in a request."""
    return {
        "rows": arguments.whole(size.rows, "rows", 0, 0xFFFF),
        "columns": arguments.whole(size.cols, "cols", 0, 0xFFFF),
    }


def encode_or_keep(value: Any) -> Any:
    """A value of the record, which is encoded already, or one of the caller's."""
    return encode_text(value) if isinstance(value, str) else value


def exit_code(exited: dict[str, Any]) -> int:
    """The code of a message `exited` of a command in a sandbox; 128 and the signal that ended it."""
    status = dict[str, Any](exited.get("status") or {})
    if "exited" in status:
        return int(status["exited"])
    if "signaled" in status:
        return 128 + int(status["signaled"])
    raise ProtocolException("a command ended without an exit status")
