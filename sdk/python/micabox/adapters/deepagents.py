"""A backend of LangChain's deepagents: its agent's shell and files are a sandbox's.

with Sandbox.create("python:3.12-slim") as box:
    agent = create_deep_agent(model=model, backend=MicaboxBackend(box))
"""

from __future__ import annotations

import errno

from deepagents.backends.protocol import (
    FILE_NOT_FOUND,
    INVALID_PATH,
    IS_DIRECTORY,
    PERMISSION_DENIED,
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
)
from deepagents.backends.sandbox import BaseSandbox

from micabox import CommandStartException, FileException, Sandbox, SandboxException

_TIMED_OUT = 124  # as timeout(1) says it
_CANNOT_START = 127
_ERRORS = {
    errno.ENOENT: FILE_NOT_FOUND,
    errno.ENOTDIR: FILE_NOT_FOUND,
    errno.EACCES: PERMISSION_DENIED,
    errno.EPERM: PERMISSION_DENIED,
    errno.EROFS: PERMISSION_DENIED,
    errno.EISDIR: IS_DIRECTORY,
    errno.ENAMETOOLONG: INVALID_PATH,
}


class MicaboxBackend(BaseSandbox):
    """A sandbox as a backend. It stays the caller's, who ends it.

    deepagents' own operations on files need `python3` in the image. A command ends with all its processes
    after `timeout` seconds, unless the agent asks for another time; 0 for none. Of its output, the first
    `max_output` bytes of each stream are kept.
    """

    # Long outputs stay in a file in the sandbox; the agent is shown their ends.
    enable_capture_offload = True

    def __init__(self, sandbox: Sandbox, timeout: float = 1800, max_output: int = 4 << 20) -> None:
        self._sandbox = sandbox
        self._timeout = timeout
        self._max_output = max_output

    @property
    def id(self) -> str:
        """The sandbox's ID."""
        return self._sandbox.sandbox_id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a shell's command line. What the sandbox itself fails to do is raised."""
        seconds = self._timeout if timeout is None else timeout
        try:
            done = self._sandbox.commands.capture(command, timeout=seconds, limit=self._max_output)
        except CommandStartException as failure:
            return ExecuteResponse(f"cannot start /bin/sh: {failure}", _CANNOT_START)
        output = done.output.decode(errors="replace")
        if done.exit_code is None:
            output += f"\nthe command was killed after {seconds:g} seconds"
            return ExecuteResponse(output, _TIMED_OUT, done.truncated)
        return ExecuteResponse(output, done.exit_code, done.truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Writes files, and makes the directories that are missing."""
        return [FileUploadResponse(path, self._upload(path, data)) for path, data in files]

    def _upload(self, path: str, data: bytes) -> str | None:
        if not path.startswith("/"):
            return INVALID_PATH
        try:
            self._sandbox.files.write(path, data)
        except (SandboxException, ValueError) as failure:
            return _error(failure)
        return None

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Reads files."""
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path, error=INVALID_PATH)
        try:
            return FileDownloadResponse(path, self._sandbox.files.read(path, "bytes"))
        except (SandboxException, ValueError) as failure:
            return FileDownloadResponse(path, error=_error(failure))


def _error(failure: Exception) -> str:
    if isinstance(failure, ValueError):
        return INVALID_PATH
    number = failure.errno if isinstance(failure, FileException) else 0
    return _ERRORS.get(number, str(failure))
