"""Sandboxes."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from micabox.aio.commands import AsyncCommands
from micabox.aio.files import AsyncFilesystem
from micabox.aio.pty import AsyncPty
from micabox.code.contexts import Contexts
from micabox.code.model import Execution, ExecutionError, OutputMessage, Result
from micabox.core import sandbox as core
from micabox.core.by_id import ByIdToo, by_id_or_false
from micabox.core.sandbox import sandboxes
from micabox.errors import SandboxNotFoundException
from micabox.io.tasks import TaskIo
from micabox.model.options import Options, documented, of_arguments
from micabox.model.progress import OnProgress
from micabox.model.sandbox import Change, SandboxInfo, SnapshotInfo, Stats

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self, Unpack


class AsyncSandbox:
    """A sandbox that runs. One that this process has made ends with it, and at the end of an
    `async with` block."""

    def __init__(self, core: core.Sandbox) -> None:
        self._core = core
        self._contexts = Contexts(core.io, core.commands)
        self.commands = AsyncCommands(core.commands)
        self.files = AsyncFilesystem(core.files)
        self.pty = AsyncPty(core.commands)

    @classmethod
    @documented
    async def create(
        cls,
        image: str | None = None,
        *,
        timeout: float | None = None,
        envs: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        on_progress: OnProgress | None = None,
        **options: Unpack[Options],
    ) -> Self:
        """Makes a sandbox from an image, which is pulled if it isn't here.

        It ends after `timeout` seconds, if given; there is no limit otherwise. `envs` and `metadata` are E2B's names
        for `env` and `label`. `on_progress` is told how far the pull is.
        """
        given = of_arguments(options, timeout=timeout, envs=envs, metadata=metadata)
        made = core.Sandbox.create(TaskIo(), image, given, on_progress)
        return cls(await made)

    @classmethod
    async def _on(cls, sandbox_id: str, call: Callable[[Self], Any], absent: Any) -> Any:
        try:
            found = await core.Sandbox.find(TaskIo(), sandbox_id)
        except SandboxNotFoundException:
            if absent is None:
                raise
            return absent
        return await call(cls(found))

    @ByIdToo
    async def connect(self, timeout: float | None = None) -> Self:
        """Lets it continue if it is paused, and ends it in `timeout` seconds, if given.

        On the class, with its name or ID: the running sandbox, whatever made it.
        """
        await self._core.connect(timeout)
        return self

    @staticmethod
    async def list(
        metadata: Mapping[str, str] | None = None, all: bool = False
    ) -> builtins.list[SandboxInfo]:
        """Sandboxes that run, with `all` also those that have ended; with these labels."""
        found = await sandboxes(TaskIo(), all, metadata)
        return [SandboxInfo.of(record) for record in found]

    @property
    def sandbox_id(self) -> str:
        """Its ID."""
        return self._core.id

    @property
    def name(self) -> str:
        """Its name."""
        return str(self._core.record["name"])

    @property
    def image(self) -> str | None:
        """Its image's name, or digest; None without an image."""
        return SandboxInfo.of(self._core.record).image

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._core.is_ours:
            await self.kill()

    @by_id_or_false
    async def kill(self) -> bool:
        """Ends it at once, like a power cut; False if it does not run."""
        self._contexts.close()
        return await self._core.kill()

    async def stop(self, grace: float = 10) -> bool:
        """Ends it in order, within `grace` seconds; False if it does not run."""
        self._contexts.close()
        return await self._core.stop(grace)

    async def is_running(self) -> bool:
        """Whether it runs, or is paused."""
        return await self._core.is_running()

    @ByIdToo
    async def set_timeout(self, timeout: float) -> None:
        """Ends it in so many seconds from now; 0 for never."""
        await self._core.set_timeout(timeout)

    @ByIdToo
    async def pause(self) -> None:
        """Stops its processors until `resume`."""
        await self._core.pause()

    async def resume(self) -> None:
        """Lets a paused one continue."""
        await self._core.resume()

    async def rename(self, name: str) -> None:
        """Gives it another name."""
        await self._core.rename(name)

    @ByIdToo
    async def get_info(self) -> SandboxInfo:
        """What is known of it."""
        return await self._core.get_info()

    async def stats(self) -> Stats:
        """What it uses of its host."""
        return await self._core.stats()

    def get_host(self, port: int) -> str:
        """`ADDRESS:PORT` on this machine that leads to a TCP port which was published."""
        return self._core.get_host(port)

    async def detach(self) -> None:
        """Lets it continue without this process."""
        await self._core.detach()

    async def fork(self, count: int = 1) -> builtins.list[AsyncSandbox]:
        """Makes copies that continue where it is (KVM only); all of them, or none."""
        return [AsyncSandbox(copy) for copy in await self._core.fork(count)]

    async def create_snapshot(self, name: str | None = None, memory: bool = False) -> SnapshotInfo:
        """Copies its disk, with `memory` the whole machine (KVM only), for `mica run --from`."""
        return await self._core.create_snapshot(name, memory)

    async def commit(self, image: str, message: str | None = None) -> str:
        """Makes an image of it; returns the image's digest."""
        return await self._core.commit(image, message)

    async def diff(self) -> builtins.list[Change]:
        """The paths that it has changed, if its changes are on a disk or in a folder."""
        return await self._core.diff()

    async def run_code(
        self,
        code: str,
        *,
        context: str = "default",
        on_stdout: Callable[[OutputMessage], Any] | None = None,
        on_stderr: Callable[[OutputMessage], Any] | None = None,
        on_result: Callable[[Result], Any] | None = None,
        on_error: Callable[[ExecutionError], Any] | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Execution:
        """Runs Python in the sandbox's own `python3`, which keeps its state for the next call.

        Each `context` has an interpreter of its own. After `timeout` seconds the code is interrupted.
        """
        return await self._contexts.run(
            code, context, envs, timeout, on_stdout, on_stderr, on_result, on_error
        )

    async def restart_code_context(self, context: str = "default") -> None:
        """Ends a context's interpreter; the next call begins with a new one."""
        self._contexts.end(context)
