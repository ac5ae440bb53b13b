"""The executor in smolagents: a CodeAgent without a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast
from unittest import mock

import PIL.Image
import pytest
from smolagents import ChatMessage, CodeAgent, Model, tool
from smolagents.models import MessageRole
from smolagents.utils import AgentError

from micabox.adapters.smolagents import MicaboxExecutor
from micabox.code import contexts
from tests.support import make
from tests.waiting import PATIENCE


class Script(Model):
    """A model that says what it is told to."""

    def __init__(self, *said: str) -> None:
        super().__init__()
        self.said = list(said)
        self.heard: list[str] = []

    def generate(self, messages: list[ChatMessage], *_: Any, **__: Any) -> ChatMessage:
        self.heard.append(str(messages[-1].content))
        return ChatMessage(MessageRole.ASSISTANT, f"<code>\n{self.said.pop(0)}\n</code>")


@tool
def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: The number.
    """
    import platform

    print("on", platform.node())
    return 2 * number


@pytest.fixture
def executor() -> Iterator[MicaboxExecutor]:
    with make() as box:
        yield MicaboxExecutor(box)


def test_an_agent_s_code_and_tools_run_in_the_sandbox() -> None:
    with make() as box:
        model = Script(
            "import os\nprint(os.uname().nodename, greeting)\nstate = double(20)",
            "1 / 0",
            "final_answer({'answer': (state + 2, {1})})",
        )
        executor = MicaboxExecutor(box)
        with CodeAgent(tools=[double], model=model, executor=executor) as agent:
            answer = agent.run("What is it?", additional_args={"greeting": "hello"})
        assert answer == {"answer": (42, {1})}
        name = box.commands.run("uname -n").stdout.strip()
        assert f"{name} hello" in model.heard[1] and f"on {name}" in model.heard[1]
        assert "ZeroDivisionError: division by zero" in model.heard[2]
        assert box.is_running()


def test_a_library_that_the_image_lacks_is_missing_for_the_agent_s_code() -> None:
    with make() as box:
        model = Script(
            "import importlib.util\nprint(importlib.util.find_spec('numpy'))\nimport numpy",
            "try:\n    import PIL\nexcept ImportError:\n    print('without')\nnumpy",
            "final_answer(object())",
            "final_answer('done')",
        )
        with CodeAgent(tools=[double], model=model, executor=MicaboxExecutor(box)) as agent:
            assert agent.run("What is there?") == "done"
        assert "None" in model.heard[1] and "ModuleNotFoundError" in model.heard[1]
        assert "without" in model.heard[2] and "NameError" in model.heard[2]
        assert "Cannot safely serialize object of type object" in model.heard[3]


def test_values_and_errors_come_back(executor: MicaboxExecutor) -> None:
    assert executor("x = 6\nprint('said')\nx * 7").output == "42"
    done = executor("import sys; print('out'); print('err', file=sys.stderr)")
    assert (done.logs, done.output, done.is_final_answer) == ("out\nerr\n", None, False)
    with pytest.raises(AgentError, match="NameError: name 'nothing' is not defined"):
        executor("nothing")
    executor.send_variables({"given": [1, (2, b"3")]})
    assert executor("given").output == "[1, (2, b'3')]"


def test_code_is_interrupted_after_its_time(executor: MicaboxExecutor) -> None:
    hasty = MicaboxExecutor(cast("Any", executor)._sandbox, timeout=0.5)
    hasty("kept = 1")
    with (
        mock.patch.object(contexts, "_GRACE", PATIENCE),
        pytest.raises(AgentError, match=r"interrupted after 0\.5 s"),
    ):
        hasty("while True: pass")
    assert hasty("kept").output == "1"


def test_an_image_is_one_of_pillow_s(executor: MicaboxExecutor) -> None:
    png = "iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAAAAAC4HznGAAAAC0lEQVR4nGNgQAcAAA4AAR4Vp0sAAAAASUVORK5CYII="
    shown = executor(f"class P:\n  def _repr_png_(self): return '{png}'\nP()").output
    assert isinstance(shown, PIL.Image.Image) and shown.size == (3, 2)


def test_the_sandbox_is_not_trusted_with_pickles(executor: MicaboxExecutor) -> None:
    code = "class FinalAnswerException(BaseException): pass\nraise FinalAnswerException('pickle:gASVAA==')"
    with pytest.raises(Exception, match="Pickle data rejected"):
        executor(code)


def test_packages_are_installed_in_the_sandbox() -> None:
    with make() as box, pytest.raises(Exception, match="pip"):
        # The sample image has no pip: what it says comes through.
        MicaboxExecutor(box, packages=["nothing"])


def test_the_sandbox_outlives_an_agent(executor: MicaboxExecutor) -> None:
    executor("x = 1")
    executor.cleanup()
    with pytest.raises(AgentError, match="NameError"):
        executor("x")
