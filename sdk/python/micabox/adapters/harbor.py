"""Harbor's environment: its trials run in sandboxes, a machine each.

harbor run -p TASK -a oracle -e micabox.adapters.harbor:MicaboxEnvironment --ek 'options={"upper": "disk:20g"}'
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult, transfer_tar_filter
from harbor.environments.capabilities import (
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)
from harbor.environments.definition import COMPOSE_FILE_NAME
from harbor.models.task.config import NetworkMode, TaskOS

from micabox import AsyncFileStreamReader, AsyncSandbox, CommandStartException

_LABEL = "harbor"
_TIMED_OUT = 124
_CANNOT_START = 127
_MAX_OUTPUT = 64 << 20
_MAX_DOWNLOAD = 64 << 30
_SHELL = 'if [ -x /bin/bash ]; then exec /bin/bash -c "$0"; fi; exec /bin/sh -c "$0"'


class MicaboxEnvironment(BaseEnvironment):
    """A sandbox of the task's `docker_image`. `options` are those of `mica run` by name, beside what the
    task says of processors, memory, storage and network."""

    def __init__(self, *args: Any, options: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        self._options = dict(options or {})
        self._sandbox: AsyncSandbox | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        """The environment's name in Harbor's logs."""
        return "micabox"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """Networks are none, allowlists, or all; the same while the sandbox runs."""
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv4_cidrs=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """A machine has its processors and memory, and no more."""
        return EnvironmentResourceCapabilities(
            cpu_limit=True, memory_limit=True, fractional_cpus=True
        )

    def _validate_definition(self) -> None:
        if self.task_env_config.os != TaskOS.LINUX:
            raise ValueError("micabox runs Linux tasks only")
        if (self.environment_dir / COMPOSE_FILE_NAME).exists():
            raise ValueError(f"micabox runs no tasks with a {COMPOSE_FILE_NAME}")
        if not self.task_env_config.docker_image:
            raise ValueError(
                "micabox builds no Dockerfiles: push the task's image to a registry or `mica load` it, "
                "and name it as [environment].docker_image"
            )

    @property
    def sandbox(self) -> AsyncSandbox:
        """The sandbox, once the environment has started."""
        if self._sandbox is None:
            raise RuntimeError("the environment has not started")
        return self._sandbox

    async def start(self, force_build: bool) -> None:
        """Makes the sandbox. There is nothing to build."""
        config = self.task_env_config
        options: dict[str, Any] = {"net": "user", **self._network()}
        if (cpus := self._effective_cpus) is not None:
            options["cpus"] = cpus
        if (memory := self._effective_memory_mb) is not None:
            options["memory"] = f"{memory}m"
        if (storage := self._effective_storage_mb) is not None:
            options["upper"] = f"disk:{storage}m"
        if config.workdir:
            options["workdir"] = config.workdir
        options |= self._options
        labels = {_LABEL: self.session_id}
        self._sandbox = await AsyncSandbox.create(config.docker_image, metadata=labels, **options)
        try:
            await self.ensure_dirs(self._mount_targets(writable_only=True))
            await self._upload_environment_dir_after_start()
        except BaseException:
            await self.stop(delete=True)
            raise

    def _network(self) -> dict[str, Any]:
        policy = self._network_policy
        if policy.network_mode == NetworkMode.NO_NETWORK:
            return {"net": "none"}
        if policy.network_mode == NetworkMode.ALLOWLIST:
            return (
                {"net_allow": list(policy.allowed_hosts)}
                if policy.allowed_hosts
                else {"net": "none"}
            )
        return {}

    async def stop(self, delete: bool) -> None:
        """Ends the sandbox; without `delete` it stays, paused, until `Sandbox.connect` resumes it."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is None:
            return
        if delete:
            await sandbox.kill()
            return
        await sandbox.detach()
        await sandbox.pause()
        self.logger.info(f"the sandbox {sandbox.name} is paused")

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Runs a shell's command line; after its time it is killed with all its processes."""
        who = self._resolve_user(user)
        try:
            done = await self.sandbox.commands.capture(
                ["/bin/sh", "-c", _SHELL, command],
                cwd=cwd,
                envs=self._merge_env(env),
                user=None if who is None else str(who),
                timeout=timeout_sec,
                limit=_MAX_OUTPUT,
            )
        except CommandStartException as failure:
            return ExecResult(stderr=str(failure), return_code=_CANNOT_START)
        stdout, stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if done.exit_code is None:
            stderr += f"\nthe command was killed after {timeout_sec} seconds"
        if callback := self._output_callback():
            for stream, data in done.pieces:
                await callback(data.decode(errors="replace"), "stderr" if stream else "stdout")
        code = _TIMED_OUT if done.exit_code is None else done.exit_code
        return ExecResult(stdout=stdout or None, stderr=stderr or None, return_code=code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Writes a file with its permissions, and makes the directories that are missing."""
        target = PurePosixPath(target_path)
        await self._upload({target.name: Path(source_path)}, str(target.parent))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Writes what is in a directory into one of the sandbox's."""
        await self._upload({path.name: path for path in Path(source_dir).iterdir()}, target_dir)

    async def _upload(self, files: Mapping[str, Path], directory: str) -> None:
        with tempfile.TemporaryFile() as file:
            with tarfile.open(fileobj=file, mode="w") as archive:
                for name, path in files.items():
                    archive.add(path, name, filter=_of_root)
            file.seek(0)
            await self.sandbox.files.unpack(directory, file, user="root")

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Reads a file."""
        target = Path(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        async with await self.sandbox.files.read(source_path, "stream", user="root") as pieces:
            await _take(pieces, target)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Reads what is in a directory: files, directories, and links that stay in it."""
        target = Path(target_dir)
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile() as file:
            async with await self.sandbox.files.pack(source_dir, user="root") as pieces:
                await _take(pieces, Path(file.name))
            with tarfile.open(file.name) as archive:
                archive.extractall(target, filter=transfer_tar_filter)


async def _take(pieces: AsyncFileStreamReader, target: Path) -> None:
    left = _MAX_DOWNLOAD
    with target.open("wb") as file:
        async for piece in pieces:
            left -= len(piece)
            if left < 0:
                raise RuntimeError(f"the sandbox has sent more than {_MAX_DOWNLOAD >> 30} GiB")
            file.write(piece)


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member
