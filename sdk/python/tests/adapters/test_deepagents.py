"""The backend in deepagents: LangChain's own suite for sandboxes, and an agent without a model."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from deepagents import create_deep_agent
from deepagents.backends.protocol import SandboxBackendProtocol
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_tests.integration_tests import SandboxIntegrationTests

from micabox import Sandbox
from micabox.adapters.deepagents import MicaboxBackend
from micabox.core.capture import Collector
from micabox.protocol.command import Output
from tests.support import make
from tests.waiting import PATIENCE, limits, wait_until

# langchain-tests 1.1 asks for what deepagents 0.7 has changed in its own part: a write replaces, and
# glob's paths are absolute.
OLDER = {
    "test_glob",
    "test_glob_basic_pattern",
    "test_glob_hidden_files_explicitly",
    "test_glob_with_character_class",
    "test_glob_with_directories",
    "test_glob_with_question_mark",
    "test_write_existing_file_fails",
}


class TestStandard(SandboxIntegrationTests):
    @pytest.fixture(autouse=True)
    def of_older_deepagents(self, request: pytest.FixtureRequest) -> None:
        if request.node.name in OLDER:
            request.node.add_marker(pytest.mark.xfail(strict=True, reason="deepagents 0.7"))

    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[SandboxBackendProtocol]:
        with make() as box:
            # The suite calls it so, as images of Python's do.
            box.commands.run("ln -s python3 /usr/bin/python")
            yield MicaboxBackend(box)


def test_glob_and_write_are_deepagents_0_7_s(box: Sandbox) -> None:
    backend = MicaboxBackend(box)
    for content in ("a", "b"):
        assert backend.write("/globbed/deep/.x", content).error is None
    assert backend.glob("**/.?", "/globbed").matches == [
        {"path": "/globbed/deep/.x", "is_dir": False}
    ]
    assert box.files.read("/globbed/deep/.x") == "b"


class Script(GenericFakeChatModel):
    """A model that says what it is told to."""

    def bind_tools(self, *_: Any, **__: Any) -> Script:
        return self


def call(name: str, **args: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": name}])


def test_an_agent_s_tools_work_in_the_sandbox(box: Sandbox) -> None:
    said = [
        call("write_file", file_path="/work/sum.py", content="print(sum(range(101)))\n"),
        call("execute", command="python3 /work/sum.py; uname -n; exit 3"),
        call("grep", pattern="range", path="/work"),
        AIMessage("done"),
    ]
    agent = create_deep_agent(model=Script(messages=iter(said)), backend=MicaboxBackend(box))
    end = agent.invoke({"messages": [{"role": "user", "content": "add them"}]})
    results = {m.name: m for m in end["messages"] if isinstance(m, ToolMessage)}
    assert box.files.read("/work/sum.py") == "print(sum(range(101)))\n"
    name = box.commands.run("uname -n").stdout
    assert f"5050\n{name}" in str(results["execute"].content)
    assert results["execute"].artifact["exit_code"] == 3
    assert "/work/sum.py" in str(results["grep"].content)


def test_a_command_ends_with_its_processes_after_its_time(box: Sandbox) -> None:
    began = time.monotonic()
    for seconds in limits(1):
        done = MicaboxBackend(box).execute("echo begun; sleep 77 & sleep 78", timeout=int(seconds))
        assert done.exit_code == 124
        if "begun" in done.output:
            assert done.output.splitlines()[0] == "begun"
            break
    assert time.monotonic() - began < PATIENCE
    wait_until(lambda: not any("sleep 7" in one.cmd for one in box.commands.list()))


def test_output_is_kept_in_order_and_within_its_limit(box: Sandbox) -> None:
    keep, kept = Collector._keep, itertools.count(1)

    def noted(self: Collector, output: Output) -> None:
        keep(self, output)
        box.files.write(f"/kept-{next(kept)}", "")

    # The next one when the one before has been kept: they come through two pipes.
    after = "while [ ! -e /kept-%d ]; do sleep .01; done"
    cmd = f"echo a; {after % 1}; echo b >&2; {after % 2}; echo c"
    with mock.patch.object(Collector, "_keep", noted):
        done = MicaboxBackend(box).execute(cmd)
    assert (done.output, done.truncated) == ("a\nb\nc\n", False)
    done = MicaboxBackend(box, max_output=1000).execute("yes | head -c 5000000; exit 5")
    assert (len(done.output), done.exit_code, done.truncated) == (1000, 5, True)


async def test_files_are_copied_with_an_error_each(box: Sandbox) -> None:
    backend = MicaboxBackend(box)
    data = bytes(range(256)) * 9999
    sent = await backend.aupload_files([("/deep/er/x", data), ("x", b""), ("/etc", b"")])
    assert [one.error for one in sent] == [None, "invalid_path", "is_directory"]
    paths = ["/deep/er/x", "/deep/er", "/none", "/etc/passwd/x"]
    got = await backend.adownload_files(paths)
    assert [one.content for one in got] == [data, None, None, None]
    assert [one.error for one in got][1:] == ["is_directory", "file_not_found", "file_not_found"]
