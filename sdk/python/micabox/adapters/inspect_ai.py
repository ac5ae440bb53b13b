"""Inspect's sandbox environment `micabox`: each sample of an evaluation has a sandbox of its own.

Task(dataset, solver=..., sandbox=("micabox", "python:3.12-slim"))
Task(dataset, solver=..., sandbox=("micabox", "sandbox.yaml"))
Task(dataset, solver=..., sandbox=SandboxEnvironmentSpec("micabox", MicaboxConfig(image=..., memory="2g")))

Inspect finds it by this package's entry point. It has to run with asyncio, which it does by default.
"""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path
from typing import Any, ClassVar, Literal, cast, overload

import yaml
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    sandboxenv,
)
from pydantic import BaseModel

from micabox import (
    AsyncSandbox,
    CommandStartException,
    FileException,
    SandboxNotFoundException,
    SandboxNotRunningException,
    program,
)

_LABEL = "inspect-ai"
_CANNOT_START = 126
_NOT_FOUND = 127


class MicaboxConfig(BaseModel, frozen=True, extra="allow"):
    """A sandbox's image, network, and all other options of `mica run` by name: `memory="1g"`."""

    image: str = "python:3.12-slim"
    net: Literal["user", "none"] = "none"
    """None by default, as samples of Inspect's Docker provider have none."""


@sandboxenv(name="micabox")
class MicaboxSandboxEnvironment(SandboxEnvironment):
    """A sandbox of a sample."""

    # Those that run, until Inspect says whether they stay.
    _running: ClassVar[set[MicaboxSandboxEnvironment]] = set()

    def __init__(self, sandbox: AsyncSandbox) -> None:
        super().__init__()
        self.sandbox = sandbox

    @classmethod
    async def sample_init(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        metadata: dict[str, str],
    ) -> dict[str, SandboxEnvironment]:
        """Makes a sample's sandbox."""
        options = _configuration(config).model_dump()
        labels = {_LABEL: task_name}
        environment = cls(await AsyncSandbox.create(metadata=labels, **cast("Any", options)))
        cls._running.add(environment)
        return {"default": environment}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Ends a sample's sandbox."""
        for environment in environments.values():
            await environment.as_type(cls)._end()

    async def _end(self) -> None:
        await self.sandbox.kill()
        self._running.discard(self)

    @classmethod
    async def task_cleanup(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, cleanup: bool
    ) -> None:
        """Ends what is left, or lets it go for `--no-sandbox-cleanup`."""
        for environment in list(cls._running):
            if cleanup:
                await environment._end()
            else:
                await environment.sandbox.detach()
                cls._running.discard(environment)
                print(f"sandbox {environment.sandbox.name}: {environment._shell()}")

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Ends sandboxes that were left: with this name or ID, or all."""
        for info in await AsyncSandbox.list():
            if _LABEL in info.metadata and id in (None, info.name, info.sandbox_id):
                try:
                    sandbox = await AsyncSandbox.connect(info.sandbox_id)
                except (SandboxNotFoundException, SandboxNotRunningException):
                    continue
                await sandbox.kill()

    @classmethod
    def default_concurrency(cls) -> int | None:
        """As many sandboxes at once as Inspect's Docker provider has."""
        return 2 * (os.cpu_count() or 1)

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """A configuration from a log."""
        return MicaboxConfig(**config)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Runs a command; after `timeout` seconds it is killed with all its processes."""
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        data = input.encode() if isinstance(input, str) else input
        try:
            done = await self.sandbox.commands.capture(
                cmd, input=data, cwd=cwd, envs=env, user=user, timeout=timeout, limit=limit
            )
        except CommandStartException as failure:
            if failure.reason == "not_executable":
                raise PermissionError(failure.errno or errno.EACCES, str(failure)) from None
            code = _NOT_FOUND if failure.reason == "not_found" else _CANNOT_START
            who = f" as user {user}" if user else ""
            return ExecResult(False, code, "", f"cannot run {cmd[0]}{who}: {failure}")
        except SandboxNotRunningException as failure:
            raise SandboxUnavailableError(str(failure)) from failure
        stdout, stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if done.exit_code is None:
            late = TimeoutError(f"the command was killed after {timeout} seconds")
            late.truncated_output = stdout + stderr  # type: ignore[attr-defined]
            raise late
        if done.truncated:
            raise OutputLimitExceededError(
                SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, stdout + stderr
            )
        return ExecResult(done.exit_code == 0, done.exit_code, stdout, stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Writes a file, and makes the directories that are missing."""
        try:
            await self.sandbox.files.write(file, contents)
        except (FileException, SandboxNotRunningException) as failure:
            raise _of(failure, file) from failure

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Reads a file, as far as Inspect's limit allows."""
        data = bytearray()
        try:
            async with await self.sandbox.files.read(file, "stream") as pieces:
                async for piece in pieces:
                    data += piece
                    if len(data) > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
                        size = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
                        raise OutputLimitExceededError(size, None)
        except (FileException, SandboxNotRunningException) as failure:
            raise _of(failure, file) from failure
        return data.decode() if text else bytes(data)

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """How a person gets into the sandbox."""
        if not await self.sandbox.is_running():
            raise ConnectionError(f"the sandbox {self.sandbox.name} does not run")
        return SandboxConnection(
            type="micabox", command=self._shell(user), container=self.sandbox.name
        )

    def _shell(self, user: str | None = None) -> str:
        who = ["--user", user] if user else []
        return shlex.join([program.mica(), "exec", "-it", *who, self.sandbox.sandbox_id, "sh"])

    def default_polling_interval(self) -> float:
        """Seconds between Inspect's looks at services in the sandbox."""
        return 0.2


def _configuration(config: SandboxEnvironmentConfigType | None) -> BaseModel:
    if not isinstance(config, str):
        return config or MicaboxConfig()
    path = Path(config)
    if path.is_file():
        return MicaboxConfig(**yaml.safe_load(path.read_text()))
    if path.suffix in (".yaml", ".yml"):
        raise FileNotFoundError(errno.ENOENT, "no such configuration of a sandbox", str(path))
    # An image's name, which Inspect took for a path from the task's directory, where this runs.
    return MicaboxConfig(image=os.path.relpath(config) if path.is_absolute() else config)


def _of(failure: FileException | SandboxNotRunningException, file: str) -> Exception:
    if isinstance(failure, FileException) and failure.errno:
        return OSError(failure.errno, os.strerror(failure.errno), file)
    if isinstance(failure, FileException):
        return RuntimeError(str(failure))
    return SandboxUnavailableError(str(failure))
