"""The README's sections on adapters, with scripts for models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from agents.testing import ScriptedModel, assistant_message, function_call
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from langchain_core.messages import AIMessage

from tests.adapters import test_deepagents, test_inspect, test_smolagents
from tests.support import IMAGE, REPOSITORY

HOST = 'backend="host", user="root"'


def section(adapter: str) -> str:
    """The code of an adapter, for the sample image on this machine's own kernel."""
    page = (REPOSITORY / "sdk" / "python" / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (block,) = [one for one in blocks if f"micabox.adapters.{adapter} " in one]
    host = f"options=dict({HOST})" if adapter == "openai_agents" else HOST
    return block.replace('"python:3.12-slim"', f'"{IMAGE}", {host}').replace(', memory="512m"', "")


def run(adapter: str, **given: Any) -> dict[str, Any]:
    """What the code has defined, with these in the places of what it takes for granted."""
    names: dict[str, Any] = dict(given)
    exec(section(adapter), names)  # noqa: S102 the README's
    return names


def test_deepagents_section() -> None:
    said = [test_deepagents.call("execute", command="echo ran"), AIMessage("done")]
    names = run("deepagents", model=test_deepagents.Script(messages=iter(said)))
    assert "ran\n" in str(names["result"]["messages"][-2].content)


def test_inspect_section(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    dataset = [Sample("x", files={"seed": "7"})]
    model = get_model("mockllm/model")
    names = run("inspect_ai", dataset=dataset, solver=test_inspect.look(), model=model)
    assert names["logs"][0].samples[0].output.completion.split()[1].startswith("7")


def test_smolagents_section() -> None:
    names = run("smolagents", model=test_smolagents.Script("final_answer(25)"))
    assert names["answer"] == 25


def test_openai_agents_section() -> None:
    call = function_call("exec_command", {"cmd": "echo ran"}, call_id="1")
    model = ScriptedModel([[call], [assistant_message("done")]])
    names = run("openai_agents", model=model)
    outputs = [one for one in names["result"].new_items if one.type == "tool_call_output_item"]
    assert "ran" in outputs[0].output and names["result"].final_output == "done"


def test_harbor_section() -> None:
    # The command of test_harbor.py.
    page = (REPOSITORY / "sdk" / "python" / "README.md").read_text()
    assert (
        "harbor run --path TASK --agent oracle --env micabox.adapters.harbor:MicaboxEnvironment"
        in page
    )
