"""Sessions of the OpenAI Agents SDK, each in a sandbox."""

from __future__ import annotations

import errno
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

from agents.sandbox.errors import (
    ExecNonZeroError,
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.pty_types import PtyExecUpdate
from agents.sandbox.session.runtime_helpers import (
    RESOLVE_WORKSPACE_PATH_HELPER,
    RuntimeHelperScript,
)
from agents.sandbox.session.sandbox_client import BaseSandboxClientOptions
from agents.sandbox.session.sandbox_session_state import SandboxSessionState
from agents.sandbox.session.tar_workspace import shell_tar_exclude_args
from agents.sandbox.types import ExecResult, ExposedPortEndpoint, User
from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tar_bytes

from micabox import (
    AsyncSandbox,
    CommandStartException,
    FileException,
    FileType,
    NotFoundException,
    PtySize,
    SandboxException,
)
from micabox.adapters.openai_agents.processes import Processes

_TERMINAL = PtySize(rows=24, cols=80)
_CANNOT_START = 126
_NOT_FOUND = 127
_MAX_OUTPUT = 64 << 20
_MAX_ARCHIVE = 4 << 30


class MicaboxSandboxClientOptions(BaseSandboxClientOptions):
    """What sandboxes are made of.

    With `keep`, a session's sandbox outlives its process: it is paused at the session's end, and continues
    where it was when the session's state is resumed, until the client deletes the session.
    """

    type: Literal["micabox"] = "micabox"
    image: str
    exposed_ports: tuple[int, ...] = ()
    keep: bool = False
    options: Mapping[str, Any] = {}
    """Options of `mica run` by name: `{"memory": "1g"}`."""


class MicaboxSandboxSessionState(SandboxSessionState):
    """A session's sandbox, and what another one is made of when that has ended."""

    type: Literal["micabox"] = "micabox"
    sandbox_id: str
    made_of: MicaboxSandboxClientOptions


class MicaboxSandboxSession(BaseSandboxSession):
    """A session in a sandbox."""

    state: MicaboxSandboxSessionState

    def __init__(self, state: MicaboxSandboxSessionState, sandbox: AsyncSandbox) -> None:
        self.state = state
        self.sandbox = sandbox
        self._processes = Processes(sandbox)

    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    def _current_runtime_helper_cache_key(self) -> object | None:
        return self.sandbox.sandbox_id

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)

    async def _prepare_backend_workspace(self) -> None:
        await self.sandbox.files.make_dir(self.state.manifest.root)

    async def running(self) -> bool:
        """Whether the sandbox runs."""
        return await self.sandbox.is_running()

    async def _shutdown_backend(self) -> None:
        if not self.state.made_of.keep:
            await self.sandbox.kill()
        elif await self.sandbox.is_running():
            await self.sandbox.pause()

    def supports_pty(self) -> bool:
        """Commands go on while the model does something else."""
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Starts a command; tells of its output so far when it has ended or `yield_time_s` are over."""
        words = self._prepare_exec_command(*command, shell=shell, user=None)
        envs = await self.state.manifest.environment.resolve()
        given: dict[str, Any] = {"envs": envs, "user": _name(user), "timeout": timeout}
        given["cwd"] = self.state.manifest.root
        try:
            if tty:
                handle = await self.sandbox.pty.create(_TERMINAL, cmd=words, **given)
            else:
                handle = await self.sandbox.commands.run(words, background=True, **given)
        except CommandStartException as failure:
            code = _NOT_FOUND if failure.reason == "not_found" else _CANNOT_START
            return PtyExecUpdate(None, str(failure).encode(), code, None)
        except SandboxException as failure:
            raise _transport_error(command, failure) from failure
        return await self._processes.add(handle, tty, yield_time_s, max_output_tokens)

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Types into a command's terminal, or only tells of its output since."""
        return await self._processes.write(session_id, chars, yield_time_s, max_output_tokens)

    async def pty_terminate_all(self) -> None:
        """Ends the commands that go on."""
        await self._processes.end()

    async def _exec_internal(
        self, *command: str | Path, timeout: float | None = None
    ) -> ExecResult:
        words, user = [str(word) for word in command], None
        if words[:2] == ["sudo", "-u"] and words[3:4] == ["--"]:
            # How `exec` says that another user runs the command. Images have no sudo.
            user, words = words[2], words[4:]
        try:
            done = await self.sandbox.commands.capture(
                words,
                user=user,
                cwd=self.state.manifest.root,
                envs=await self.state.manifest.environment.resolve(),
                timeout=timeout,
                limit=_MAX_OUTPUT,
            )
        except CommandStartException as failure:
            code = _NOT_FOUND if failure.reason == "not_found" else _CANNOT_START
            return ExecResult(stdout=b"", stderr=str(failure).encode(), exit_code=code)
        except SandboxException as failure:
            raise _transport_error(command, failure) from failure
        if done.exit_code is None:
            raise ExecTimeoutError(command=command, timeout_s=timeout)
        return ExecResult(stdout=done.stdout, stderr=done.stderr, exit_code=done.exit_code)

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """Reads a file of the workspace."""
        place = await self._validate_path_access(path)
        try:
            data = await self.sandbox.files.read(str(place), "bytes", _name(user))
        except SandboxException as failure:
            raise _read_error(path, failure) from failure
        return io.BytesIO(data)

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        place = await self._validate_path_access(path)
        data = bytearray()
        try:
            async with await self.sandbox.files.read(str(place), "stream") as pieces:
                async for piece in pieces:
                    data += piece
                    if len(data) >= max_bytes:
                        break
        except SandboxException as failure:
            raise _read_error(path, failure) from failure
        return bytes(data[:max_bytes])

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Writes a file of the workspace, and makes the directories that are missing."""
        place = await self._validate_path_access(path, for_write=True)
        try:
            await self.sandbox.files.write(str(place), _bytes(place, data), _name(user))
        except SandboxException as failure:
            raise WorkspaceArchiveWriteError(path=path, cause=failure) from failure

    async def mkdir(
        self, path: Path | str, *, parents: bool = False, user: str | User | None = None
    ) -> None:
        """Makes a directory. One that is there is left as it is, as by the client for this machine."""
        try:
            await super().mkdir(path, parents=parents, user=user)
        except ExecNonZeroError:
            place = await self._validate_path_access(path, for_write=True)
            if not await self._is_directory(place):
                raise

    async def _is_directory(self, place: Path) -> bool:
        try:
            return (await self.sandbox.files.get_info(str(place))).type is FileType.DIR
        except SandboxException:
            return False

    async def persist_workspace(self) -> io.IOBase:
        """The workspace as a tar archive."""
        root = self._workspace_root_path()
        excludes = shell_tar_exclude_args(self._persist_workspace_skip_relpaths())
        try:
            done = await self.sandbox.commands.capture(
                f"tar {' '.join(excludes)} -cf - .",
                cwd=str(root),
                timeout=None,
                limit=_MAX_ARCHIVE,
            )
        except SandboxException as failure:
            raise WorkspaceArchiveReadError(path=root, cause=failure) from failure
        if done.exit_code or done.truncated:
            why = "too_large" if done.truncated else done.stderr.decode(errors="replace")
            raise WorkspaceArchiveReadError(path=root, context={"reason": why})
        return io.BytesIO(done.stdout)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Fills the workspace from a tar archive."""
        root = self._workspace_root_path()
        archive = _bytes(root, data)
        try:
            validate_tar_bytes(archive, allow_external_symlink_targets=False)
            await self.sandbox.files.unpack(str(root), archive)
        except (SandboxException, UnsafeTarMemberError) as failure:
            raise WorkspaceArchiveWriteError(path=root, cause=failure) from failure

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        try:
            host, _, outside = self.sandbox.get_host(port).rpartition(":")
        except NotFoundException as failure:
            raise ExposedPortUnavailableError(
                port=port,
                exposed_ports=self.state.exposed_ports,
                reason="backend_unavailable",
                cause=failure,
            ) from failure
        return ExposedPortEndpoint(host, int(outside))


def _name(user: str | User | None) -> str | None:
    return user.name if isinstance(user, User) else user


def _bytes(path: Path, data: io.IOBase) -> bytes:
    read = cast("object", data.read())
    if isinstance(read, str):
        return read.encode()
    if not isinstance(read, (bytes, bytearray)):
        raise WorkspaceWriteTypeError(path=path, actual_type=type(read).__name__)
    return bytes(read)


def _transport_error(command: tuple[str | Path, ...], failure: SandboxException) -> Exception:
    return ExecTransportError(command=command, cause=failure, message=str(failure))


def _read_error(path: Path, failure: SandboxException) -> Exception:
    if isinstance(failure, FileException) and failure.errno in (errno.ENOENT, errno.ENOTDIR):
        return WorkspaceReadNotFoundError(path=path, cause=failure)
    return WorkspaceArchiveReadError(path=path, cause=failure)
