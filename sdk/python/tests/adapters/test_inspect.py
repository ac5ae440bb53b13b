"""The sandbox environment in Inspect: Inspect's own checks of providers, and evaluations without a model."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog, read_eval_log
from inspect_ai.model import ModelOutput, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver, use_tools
from inspect_ai.tool import bash
from inspect_ai.util import SandboxEnvironmentSpec, SandboxUnavailableError, sandbox
from inspect_ai.util._sandbox.self_check import *

from micabox import AsyncSandbox, Sandbox, SandboxInfo
from micabox.adapters.inspect_ai import MicaboxConfig, MicaboxSandboxEnvironment
from tests.adapters.processes import wait_until_gone
from tests.support import IMAGE
from tests.waiting import limits

CONFIG = MicaboxConfig(image=IMAGE, backend="host", user="root", workdir="/work")  # type: ignore[call-arg]


@pytest.fixture(scope="module")
def shared() -> Iterator[Sandbox]:
    # Not root, whom no permission stops.
    with Sandbox.create(IMAGE, backend="host", user="www-data", workdir="/tmp") as box:
        yield box


@pytest.fixture
async def sandbox_env(shared: Sandbox) -> AsyncIterator[MicaboxSandboxEnvironment]:
    yield MicaboxSandboxEnvironment(await AsyncSandbox.connect(shared.sandbox_id))


# They look with `ps`, which the image does not have. The next one does their work.
del test_exec_timeout_kills_process, test_exec_timeout_kills_child_processes  # noqa: F821


async def test_a_timeout_leaves_no_process(sandbox_env: MicaboxSandboxEnvironment) -> None:
    for seconds in limits(1):
        with pytest.raises(TimeoutError) as late:
            cmd = ["sh", "-c", "echo begun; sleep 77 & sleep 78"]
            await sandbox_env.exec(cmd, timeout=int(seconds))
        if said := late.value.truncated_output:  # type: ignore[attr-defined]
            assert said == "begun\n"
            break
    await wait_until_gone(sandbox_env.sandbox, "sleep 77", "sleep 78")


async def test_a_sandbox_that_has_ended_is_unavailable() -> None:
    (env,) = (await MicaboxSandboxEnvironment.sample_init("task", CONFIG, {})).values()
    await MicaboxSandboxEnvironment.sample_cleanup("task", CONFIG, {"default": env}, False)
    with pytest.raises(SandboxUnavailableError):
        await env.exec(["true"])
    with pytest.raises(SandboxUnavailableError):
        await env.read_file("/etc/passwd")
    with pytest.raises(ConnectionError):
        await env.connection()


async def test_a_person_gets_in(sandbox_env: MicaboxSandboxEnvironment) -> None:
    connection = await sandbox_env.connection(user="root")
    command = connection.command.replace(" -it ", " -i ")
    said = await asyncio.to_thread(
        subprocess.check_output, command, shell=True, input="id -u; uname -n", text=True
    )
    name = await sandbox_env.exec(["uname", "-n"])
    assert said == f"0\n{name.stdout}"


def running() -> list[SandboxInfo]:
    return [one for one in Sandbox.list() if "inspect-ai" in one.metadata]


def run(
    task: Task, tmp_path: Path, outputs: list[ModelOutput] | None = None, **options: Any
) -> EvalLog:
    model = get_model("mockllm/model", custom_outputs=outputs)
    (log,) = eval(task, model=model, log_dir=str(tmp_path), display="none", **options)
    assert log.status == "success", log.error
    return log


def uses_bash(cmd: str) -> list[ModelOutput]:
    call = ModelOutput.for_tool_call("mockllm/model", "bash", {"command": cmd})
    return [call, ModelOutput.from_content("mockllm/model", "done")]


@solver
def look() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        name = (await sandbox().exec(["uname", "-n"])).stdout.strip()
        there = (await sandbox().exec(["sh", "-c", "cat seed; ls | wc -l; touch mine"])).stdout
        state.output = ModelOutput.from_content("mockllm/model", f"{name} {there}")
        return state

    return solve


def test_samples_have_sandboxes_of_their_own(tmp_path: Path) -> None:
    samples = [Sample(str(n), target=f"{n}1", files={"seed": str(n)}) for n in range(4)]
    task = Task(
        samples, solver=look(), scorer=includes(), sandbox=SandboxEnvironmentSpec("micabox", CONFIG)
    )
    log = run(task, tmp_path)
    assert log.samples is not None and log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1
    assert len({one.output.completion.split()[0] for one in log.samples}) == 4
    assert not running()


def test_a_model_s_tool_calls_run_in_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Inspect counts the tokens of a tool's output, with a tokenizer from the internet.
    monkeypatch.setattr("inspect_ai.model._model.count_text_tokens", len)
    task = Task([Sample("look")], solver=[use_tools(bash(timeout=60)), generate()])
    outputs = uses_bash("cut -d: -f1 /proc/net/dev | grep -c eth; uname -r")
    log = run(task, tmp_path, outputs, sandbox=("micabox", IMAGE))
    assert log.samples is not None
    (said,) = [m.text or str(m.error) for m in log.samples[0].messages if m.role == "tool"]
    interfaces, release = said.split()[-2:]
    assert interfaces == "0" and release != os.uname().release, said


def test_sandboxes_stay_if_they_are_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = SandboxEnvironmentSpec("micabox", CONFIG)
    task = Task([Sample("x")], name="kept", solver=look(), sandbox=spec)
    run(task, tmp_path, sandbox_cleanup=False)
    (left,) = running()
    assert left.metadata == {"inspect-ai": "kept"}
    assert f"sandbox {left.name}: " in capsys.readouterr().out
    command = ["inspect", "sandbox", "cleanup", "micabox", left.name]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert not running()


def test_the_command_line_finds_it(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(
        "from inspect_ai import Task, task\n"
        "from inspect_ai.dataset import Sample\n"
        "from inspect_ai.solver import solver\n"
        "from inspect_ai.util import sandbox\n"
        "@solver\n"
        "def look():\n"
        "    async def solve(state, generate):\n"
        "        state.output.completion = await sandbox().read_file('made')\n"
        "        return state\n"
        "    return solve\n"
        "@task\n"
        "def one():\n"
        "    return Task([Sample('x', setup='echo by the setup >made')], solver=look())\n"
    )
    (tmp_path / "box.yaml").write_text(yaml.safe_dump(CONFIG.model_dump()))
    command = ["inspect", "eval", "task.py", "--model", "mockllm/model", "--display", "plain"]
    done = subprocess.run(
        [*command, "--sandbox", "micabox:box.yaml"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = (tmp_path / "logs").iterdir()
    (sample,) = read_eval_log(str(log)).samples or []
    assert sample.output.completion == "by the setup\n", done.stdout


def test_a_configuration_that_is_missing_is_no_image() -> None:
    for name in ("missing.yaml", "/proc/none/box.yml"):
        with pytest.raises(FileNotFoundError, match="no such configuration"):
            asyncio.run(MicaboxSandboxEnvironment.sample_init("task", name, {}))


def test_a_configuration_survives_its_log() -> None:
    again = MicaboxSandboxEnvironment.config_deserialize(CONFIG.model_dump())
    assert again == CONFIG and hash(again) == hash(CONFIG)
