"""The client in the OpenAI Agents SDK: beside the SDK's own client for this machine, and an agent without a model."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import json
import os
import tarfile
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agents import RunConfig, Runner, set_tracing_disabled
from agents.sandbox import LocalSnapshotSpec, Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import Dir, File
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    InvalidManifestPathError,
    SandboxError,
)
from agents.sandbox.sandboxes.unix_local import (
    UnixLocalSandboxClient,
    UnixLocalSandboxClientOptions,
)
from agents.sandbox.session.pty_types import PtyExecUpdate
from agents.sandbox.session.sandbox_session import SandboxSession
from agents.sandbox.snapshot import SnapshotSpec
from agents.testing import ScriptedModel, assistant_message, function_call

from micabox import Sandbox
from micabox.adapters.openai_agents import (
    MicaboxSandboxClient,
    MicaboxSandboxClientOptions,
    MicaboxSandboxSessionState,
)
from tests.adapters.processes import wait_until_gone
from tests.support import IMAGE
from tests.waiting import PATIENCE, until, wait_until

set_tracing_disabled(True)
ON_HOST = {"backend": "host", "user": "root", "workdir": "/"}
OPTIONS = MicaboxSandboxClientOptions(image=IMAGE, options=ON_HOST)
MANIFEST = Manifest(
    entries={
        "a.txt": File(content=b"one\n"),
        "src": Dir(children={"b.py": File(content=b"print(1 + 1)\n")}),
        "passing": File(content=b"x", ephemeral=True),
    },
    environment={"value": {"GREETING": "hello"}},  # type: ignore[arg-type]
)


@asynccontextmanager
async def session_of(
    options: MicaboxSandboxClientOptions = OPTIONS, snapshot: SnapshotSpec | None = None
) -> AsyncGenerator[SandboxSession]:
    session = await MicaboxSandboxClient().create(
        manifest=MANIFEST, options=options, snapshot=snapshot
    )
    async with session:
        yield session


@pytest.fixture
async def session() -> AsyncIterator[SandboxSession]:
    async with session_of() as made:
        yield made


@pytest.fixture
async def local() -> AsyncIterator[SandboxSession]:
    """The same workspace, on this machine."""
    options = UnixLocalSandboxClientOptions()
    client = UnixLocalSandboxClient()
    made = await client.create(manifest=MANIFEST.model_copy(deep=True), options=options)
    async with made:
        yield made
    await client.delete(made)


def text(stream: io.IOBase) -> str:
    return bytes(stream.read()).decode()


async def run(session: SandboxSession, *command: str, **options: Any) -> Any:
    done = await session.exec(*command, **options)
    return done.stdout, done.stderr, done.exit_code


async def names(session: SandboxSession, path: str) -> list[tuple[str, str, int]]:
    root = Path(session.state.manifest.root)
    entries = await session.ls(path)
    return sorted(
        (str(Path(e.path).relative_to(root)), e.kind.value, e.size if e.kind.value == "file" else 0)
        for e in entries
        if Path(e.path).name not in (".", "..")
    )


async def archived(session: SandboxSession) -> dict[str, bytes | None]:
    with tarfile.open(fileobj=io.BytesIO(bytes((await session.persist_workspace()).read()))) as tar:
        files = {m.name: tar.extractfile(m) for m in tar}
        return {
            name.removeprefix("./"): file.read() if file else None
            for name, file in files.items()
            if name != "."
        }


async def unpacked(session: SandboxSession) -> Any:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo("deep/file")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"abc"))
    archive.seek(0)
    await session.hydrate_workspace(archive)
    return text(await session.read(Path("deep/file")))


async def extracted(session: SandboxSession) -> Any:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    archive.seek(0)
    await session.extract("x/y.tar.gz", archive, compression_scheme="tar")
    return await names(session, "x")


async def written(session: SandboxSession) -> Any:
    await session.mkdir("new/dir", parents=True)
    await session.mkdir("new/dir")  # It is there.
    await session.write(Path("new/dir/file"), io.BytesIO(bytes(range(256)) * 5000))
    await session.mv("new/dir/file", "new/moved")
    await session.rm("new/dir", recursive=True)
    same = await session.same_file("new/moved", "new/../new/moved")
    data = bytes((await session.read(Path("new/moved"))).read())
    return same, data, await session.read_bounded(Path("new/moved"), max_bytes=300)


async def patched(session: SandboxSession) -> Any:
    operations: list[Any] = [
        {"type": "update_file", "path": "a.txt", "diff": "@@\n-one\n+two\n"},
        {"type": "create_file", "path": "src/c.py", "diff": "+pass\n"},
        {"type": "delete_file", "path": "src/b.py"},
    ]
    said = [await session.apply_patch(one) for one in operations]
    return said, text(await session.read(Path("a.txt"))), await names(session, "src")


async def failed(session: SandboxSession) -> Any:
    kinds: list[Any] = []
    for action in (
        session.read(Path("none")),
        session.read(Path("/etc/passwd")),
        session.write(Path("../out"), io.BytesIO(b"")),
        session.ls("none"),
        session.rm("none"),
        session.hydrate_workspace(io.BytesIO(b"no archive")),
    ):
        try:
            await action
            kinds.append(None)
        except (SandboxError, ValueError) as failure:
            kinds.append((type(failure), getattr(failure, "error_code", None)))
    return kinds


CASES: dict[str, Callable[[SandboxSession], Awaitable[Any]]] = {
    "a shell's command": lambda s: run(s, "echo $GREETING; cat a.txt; echo e >&2; exit 3"),
    "bytes that are no text": lambda s: run(s, "printf", "\\377\\000\\n", shell=False),
    "a program": lambda s: run(s, "cat", "a.txt", "src/b.py", shell=False),
    "a list": lambda s: names(s, "."),
    "files": written,
    "a patch": patched,
    "an archive of all": archived,
    "an archive into all": unpacked,
    "an archive that was sent": extracted,
    "what is refused": failed,
}


@pytest.mark.parametrize("name", CASES)
async def test_it_is_as_on_this_machine(
    name: str, session: SandboxSession, local: SandboxSession
) -> None:
    assert await CASES[name](session) == await CASES[name](local)


async def test_commands_run_in_the_sandbox(session: SandboxSession) -> None:
    inner: Any = session._inner
    node = (await inner.sandbox.commands.run("uname -n")).stdout
    assert (await session.exec("uname -n")).stdout.decode() == node != f"{os.uname().nodename}\n"
    assert (await session.exec("id -un", user="www-data")).stdout == b"www-data\n"
    with pytest.raises(ExecTimeoutError):
        await session.exec("sleep 77 & sleep 78", timeout=1)
    await wait_until_gone(inner.sandbox, "sleep 77", "sleep 78")
    assert (await session.exec("nothing", shell=False)).exit_code == 127


async def test_links_do_not_lead_out_of_the_workspace(session: SandboxSession) -> None:
    await session.exec("ln -s /etc out")
    with pytest.raises(InvalidManifestPathError):
        await session.read(Path("out/passwd"))
    with pytest.raises(InvalidManifestPathError):
        await session.write(Path("out/new"), io.BytesIO(b"x"))


async def test_an_agent_s_tools_work_in_the_sandbox() -> None:
    commands = ["python3 src/b.py; cat a.txt; exit 3", "sleep 0.4; uname -s"]
    calls: list[Any] = [
        [function_call("exec_command", {"cmd": one, "yield_time_ms": 30_000}, call_id=one)]
        for one in commands
    ]
    model = ScriptedModel([*calls, [assistant_message("done")]])
    config = RunConfig(sandbox=SandboxRunConfig(client=MicaboxSandboxClient(), options=OPTIONS))
    agent = SandboxAgent(name="coder", model=model, default_manifest=MANIFEST)
    result = await Runner.run(agent, "look", run_config=config)
    assert result.final_output == "done"
    said = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert "exited with code 3" in said[0] and "2\none" in said[0]
    assert "Linux" in said[1]
    assert not Sandbox.list()


async def told(
    session: SandboxSession, update: PtyExecUpdate, said: bytes | None = None
) -> PtyExecUpdate:
    """What is told of a command until it has written this, or has ended."""
    output = update.output
    while update.process_id is not None and (said is None or said not in output):
        update = await session.pty_write_stdin(
            session_id=update.process_id, chars="", yield_time_s=5
        )
        output += update.output
    assert said is None or said in output
    return dataclasses.replace(update, output=output)


async def test_a_command_goes_on_while_the_model_does_something_else(
    session: SandboxSession,
) -> None:
    begun = await session.pty_exec_start(
        "echo name?; read n; echo hello $n", tty=True, yield_time_s=0.5
    )
    number = begun.process_id
    assert number is not None
    begun = await told(session, begun, b"name?")
    assert (begun.process_id, begun.exit_code) == (number, None)
    ended = await session.pty_write_stdin(session_id=number, chars="you\n", yield_time_s=5)
    ended = await told(session, ended)
    assert (ended.process_id, ended.exit_code) == (None, 0) and b"hello you" in ended.output
    quick = await told(session, await session.pty_exec_start("echo out; echo err >&2; exit 4"))
    assert (quick.process_id, quick.exit_code) == (None, 4)
    assert sorted(quick.output.splitlines()) == [b"err", b"out"]
    loud = await session.pty_exec_start("yes & sleep 77", yield_time_s=0.5)
    loud = await told(session, loud, b"y\n")
    assert loud.process_id is not None
    await session.pty_terminate_all()
    inner: Any = session._inner
    await wait_until_gone(inner.sandbox, "yes", "sleep 77")


async def test_ports_are_this_machine_s() -> None:
    options = MicaboxSandboxClientOptions(image=IMAGE, exposed_ports=(8000,), options=ON_HOST)
    async with session_of(options) as session:
        server = await session.pty_exec_start("python3 -m http.server 8000", yield_time_s=1)
        assert server.process_id is not None
        end = await session.resolve_exposed_port(8000)
        address = end.url_for("http") + "a.txt"

        def is_served() -> bool:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(address, timeout=PATIENCE) as page,
            ):
                return bool(page.read() == b"one\n")
            return False

        await asyncio.to_thread(wait_until, is_served)


async def test_a_workspace_goes_on_in_another_sandbox(tmp_path: Path) -> None:
    client = MicaboxSandboxClient()
    snapshot = LocalSnapshotSpec(base_path=tmp_path)
    async with session_of(snapshot=snapshot) as session:
        await session.exec("echo more >>a.txt; rm passing")
    state = client.deserialize_session_state(
        json.loads(json.dumps(client.serialize_session_state(session.state)))
    )
    assert isinstance(state, MicaboxSandboxSessionState)
    ended = state.sandbox_id
    again = await client.resume(state)
    async with again:
        assert text(await again.read(Path("a.txt"))) == "one\nmore\n"
        assert text(await again.read(Path("passing"))) == "x"
    assert state.sandbox_id != ended


async def test_a_sandbox_that_is_kept_goes_on() -> None:
    client = MicaboxSandboxClient()
    async with session_of(OPTIONS.model_copy(update={"keep": True})) as session:
        started = await session.pty_exec_start("sleep 600", yield_time_s=0.3)
        assert started.process_id is not None
        await session.exec("nohup sleep 601 >/dev/null 2>&1 &")
    (left,) = Sandbox.list()
    assert left.state == "paused"
    again = await client.resume(session.state)
    async with again:
        inner: Any = again._inner
        assert inner.sandbox.sandbox_id == left.sandbox_id
        await wait_until_gone(inner.sandbox, "sleep 600")

        async def is_on() -> bool:
            return "sleep 601" in [one.cmd for one in await inner.sandbox.commands.list()]

        await until(is_on)
        assert text(await again.read(Path("a.txt"))) == "one\n"
    await client.delete(again)
    assert not Sandbox.list()


async def test_a_sandbox_that_has_ended_is_a_lost_transport(session: SandboxSession) -> None:
    inner: Any = session._inner
    await inner.sandbox.kill()
    assert not await session.running()
    with pytest.raises(ExecTransportError):
        await session.exec("true")
