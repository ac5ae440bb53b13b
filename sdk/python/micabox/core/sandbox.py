"""A sandbox: how it is made and found, and what can be done with it as a whole."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from typing import Any

from micabox import arguments
from micabox.core import mica
from micabox.core.callback import tell
from micabox.core.commands import Commands
from micabox.core.exec import Defaults
from micabox.core.files import Files
from micabox.core.owner import Hear, Owner
from micabox.errors import (
    NotFoundException,
    SandboxNotFoundException,
    SandboxNotRunningException,
)
from micabox.io import Io
from micabox.model.progress import OnProgress, PullProgress
from micabox.model.sandbox import Change, OptionValue, SandboxInfo, SnapshotInfo, Stats

_KINDS = {"A": "added", "C": "changed", "D": "deleted"}


class Sandbox:
    """A sandbox that runs."""

    def __init__(self, io: Io, directory: str, record: dict[str, Any], is_ours: bool) -> None:
        self.io = io
        self.record = record
        # What this process has made ends with it; a forked child has made nothing yet.
        self._maker = os.getpid() if is_ours else None
        self._state: str | None = None
        self.owner = Owner(io, directory)
        defaults = Defaults(record)
        self.commands = Commands(self.owner, defaults)
        self.files = Files(self.owner, defaults)

    @property
    def id(self) -> str:
        """Its ID."""
        return str(self.record["id"])

    @property
    def is_ours(self) -> bool:
        """Whether it ends with this process."""
        return self._maker == os.getpid()

    @classmethod
    async def create(
        cls,
        io: Io,
        image: str | None,
        options: Mapping[str, OptionValue],
        on_progress: OnProgress | None = None,
    ) -> Sandbox:
        """Makes a sandbox, which ends with this process."""

        async def hear(message: dict[str, Any]) -> None:
            if progress := PullProgress.of(message):
                await tell(on_progress, progress)

        given = {
            name.replace("_", "-"): value for name, value in options.items() if value is not None
        }
        request: dict[str, Any] = {"type": "create", "options": given}
        if image is not None:
            request["image"] = arguments.text(image, "an image")
        if on_progress:
            request["progress"] = True
        (made,) = await cls._make(io, request, hear)
        return made

    @classmethod
    async def _make(
        cls, io: Io, request: dict[str, Any], hear: Hear | None = None
    ) -> list[Sandbox]:
        said = await mica.ask(io, request, "sandboxes", hear)
        made = [dict[str, Any](one) for one in said["sandboxes"]]
        return [cls(io, str(one["directory"]), dict[str, Any](one["record"]), True) for one in made]

    @classmethod
    async def find(cls, io: Io, name: str) -> Sandbox:
        """The sandbox with this name or ID, as it is."""
        record = await lookup(io, name)
        home = await mica.home(io)
        found = cls(io, f"{home}/sandboxes/{record['id']}", record, False)
        found._state = str(record["state"])
        return found

    async def connect(self, timeout: float | None) -> None:
        """Lets it continue if it is paused, and ends it in so long. Raises if it does not run."""
        # As `find` has just seen it.
        state = self._state or str((await lookup(self.io, self.id))["state"])
        self._state = None
        if state not in ("running", "paused"):
            name = self.record["name"]
            raise SandboxNotRunningException(
                f"the sandbox `{name}` does not run", kind="not_running"
            )
        if state == "paused":
            await self.resume()
        if timeout is not None:
            await self.set_timeout(timeout)

    async def kill(self) -> bool:
        """Ends it at once, like a power cut; False if it does not run."""
        return await self._end({"type": "kill"})

    async def stop(self, grace: float) -> bool:
        """Asks it to end, and kills it after `grace` seconds; False if it does not run."""
        milliseconds = arguments.milliseconds(arguments.seconds(grace, "grace"))
        return await self._end({"type": "stop", "grace": milliseconds})

    async def _end(self, message: dict[str, Any]) -> bool:
        try:
            await self.owner.ask(message, "stopped")
        except SandboxNotRunningException:
            return False
        finally:
            self.owner.close()
        return True

    async def is_running(self) -> bool:
        """Whether its owner answers, and it is not about to end."""
        try:
            info = await self.owner.ask({"type": "info"}, "info")
        except SandboxNotRunningException:
            return False
        return not info.get("ending")

    async def set_timeout(self, seconds: float) -> None:
        """Ends it in so many seconds; 0 for never."""
        message: dict[str, Any] = {"type": "expire", "max_life": 0}
        if seconds := arguments.seconds(seconds, "a timeout"):
            # The owner measures it: the wall clock may step.
            message = {"type": "end_in", "millis": arguments.milliseconds(seconds)}
        await self.owner.ask(message, "expires")

    async def pause(self) -> None:
        """Stops its processors until `resume`."""
        await self.owner.ask({"type": "pause"}, "paused")

    async def resume(self) -> None:
        """Lets a paused one continue."""
        await self.owner.ask({"type": "unpause"}, "unpaused")

    async def rename(self, name: str) -> None:
        """Gives it another name."""
        name = arguments.text(name, "a name")
        await self.owner.ask({"type": "rename", "name": name}, "renamed")
        self.record["name"] = name

    async def get_info(self) -> SandboxInfo:
        """What is known of it."""
        return SandboxInfo.of(await lookup(self.io, self.id))

    async def stats(self) -> Stats:
        """What it uses of its host."""
        return Stats.of(await self.owner.ask({"type": "stats"}, "stats"))

    def get_host(self, port: int) -> str:
        """Address and port on this machine that lead to a TCP port which was published."""
        published: list[str] = self.record.get("published") or []
        for one in published:
            outside, _, inside = one.rpartition(":")
            if inside == f"{port}/tcp":
                return outside
        raise NotFoundException(
            f"port {port} is not published",
            kind="not_found",
            hint=f'publish it: Sandbox.create(..., publish=["8080:{port}"])',
        )

    async def detach(self) -> None:
        """Lets it continue without this process."""
        await mica.ask(self.io, {"type": "detach", "sandbox": self.id}, "detached")
        self._maker = None

    async def fork(self, count: int) -> list[Sandbox]:
        """Makes copies that continue where it is."""
        count = arguments.whole(count, "count", 1, 0xFFFF)
        request = {"type": "fork", "sandbox": self.id, "count": count}
        return await self._make(self.io, request)

    async def create_snapshot(self, name: str | None, memory: bool) -> SnapshotInfo:
        """Copies its disk, with `memory` the whole machine."""
        name = name or f"{self.record['name']}-{secrets.token_hex(4)}"
        flags = ["--memory"] if memory else []
        await mica.command(self.io, "snapshot", "create", *flags, "--", self.id, name)
        found = await mica.look(self.io, "snapshot", "ls")
        record = next(dict[str, Any](one) for one in found if one["name"] == name)
        return SnapshotInfo(name, record)

    async def commit(self, image: str, message: str | None) -> str:
        """Makes an image of it; returns its digest."""
        flags = ["--message", message] if message else []
        said = await mica.command(self.io, "commit", *flags, "--", self.id, image)
        return said.decode().strip()

    async def diff(self) -> list[Change]:
        """The paths that it has changed."""
        found = await mica.look(self.io, "diff", self.id)
        return [Change(_path(one), _KINDS[str(one["kind"])]) for one in found]


def _path(change: dict[str, Any]) -> str:
    if "path_hex" in change:
        return os.fsdecode(bytes.fromhex(str(change["path_hex"])))
    return str(change["path"])


async def lookup(io: Io, name: str) -> dict[str, Any]:
    """The record of the sandbox with this name or ID, or the only one whose ID begins so."""
    name = arguments.text(name, "a sandbox's name")
    records = await sandboxes(io, True)
    found = [one for one in records if name in (one["name"], one["id"])]
    found = found or [one for one in records if name and str(one["id"]).startswith(name)]
    if len(found) != 1:
        how = "several sandboxes have an ID that begins with" if found else "no sandbox is called"
        raise SandboxNotFoundException(f"{how} `{name}`", kind="not_found")
    return found[0]


async def sandboxes(
    io: Io, all: bool, metadata: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Records of sandboxes that run, or of all, with these labels."""
    labels = arguments.variables(metadata, "metadata")
    flags = [f"--filter=label={key}={value}" for key, value in labels.items()]
    said = await mica.command(io, "ps", "--json", *(["--all"] if all else []), *flags)
    return [dict[str, Any](one) for one in json.loads(said)]
