"""The client that makes sandboxes for sessions of the OpenAI Agents SDK."""

from __future__ import annotations

import socket
import uuid
from typing import Any

from agents.sandbox.manifest import Manifest
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.sandbox_client import BaseSandboxClient
from agents.sandbox.session.sandbox_session import SandboxSession
from agents.sandbox.session.sandbox_session_state import SandboxSessionState
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot

from micabox import AsyncSandbox, SandboxNotFoundException, SandboxNotRunningException
from micabox.adapters.openai_agents.session import (
    MicaboxSandboxClientOptions,
    MicaboxSandboxSession,
    MicaboxSandboxSessionState,
)


class MicaboxSandboxClient(BaseSandboxClient[MicaboxSandboxClientOptions]):
    """Makes sandboxes for sessions, and finds those of sessions that are resumed."""

    backend_id = "micabox"

    def __init__(self, instrumentation: Instrumentation | None = None) -> None:
        self._instrumentation = instrumentation or Instrumentation()

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: MicaboxSandboxClientOptions,
    ) -> SandboxSession:
        """Makes a session with a sandbox of its own."""
        manifest = self._validate_manifest_for_create(manifest or Manifest())
        sandbox = await _make(options)
        session_id = uuid.uuid4()
        state = MicaboxSandboxSessionState(
            session_id=session_id,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            exposed_ports=options.exposed_ports,
            sandbox_id=sandbox.sandbox_id,
            made_of=options,
        )
        session = MicaboxSandboxSession(state, sandbox)
        return self._wrap_session(session, instrumentation=self._instrumentation)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """The session with its sandbox, or with another one where that has ended."""
        if not isinstance(state, MicaboxSandboxSessionState):
            raise TypeError("the state is of another client's session")
        state.assert_path_grants_rebound()
        try:
            sandbox = await AsyncSandbox.connect(state.sandbox_id)
            is_there = True
        except (SandboxNotFoundException, SandboxNotRunningException):
            sandbox = await _make(state.made_of)
            state.sandbox_id = sandbox.sandbox_id
            state.workspace_root_ready = is_there = False
        session = MicaboxSandboxSession(state, sandbox)
        session._set_start_state_preserved(is_there)
        return self._wrap_session(session, instrumentation=self._instrumentation)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Ends a session's sandbox."""
        inner = session._inner
        if not isinstance(inner, MicaboxSandboxSession):
            raise TypeError("the session is another client's")
        await inner.sandbox.kill()
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """A session's state from JSON."""
        return self._deserialize_session_state_payload(payload, MicaboxSandboxSessionState)


async def _make(made_of: MicaboxSandboxClientOptions) -> AsyncSandbox:
    options: dict[str, Any] = dict(made_of.options)
    ports = [f"{_free_port()}:{port}" for port in made_of.exposed_ports]
    options["publish"] = [*options.get("publish", []), *ports]
    sandbox = await AsyncSandbox.create(made_of.image, **options)
    if made_of.keep:
        await sandbox.detach()
    return sandbox


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
