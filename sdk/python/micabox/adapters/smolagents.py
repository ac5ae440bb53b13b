"""An executor of smolagents: the code that an agent writes runs in a sandbox's Python.

with Sandbox.create("python:3.12-slim") as box, CodeAgent(
    tools=[], model=model, executor=MicaboxExecutor(box)
) as agent:
    agent.run("How many prime numbers are there below 1000?")
"""

from __future__ import annotations

import base64
import io
from typing import Any

import PIL.Image
from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.tools import Tool
from smolagents.utils import AgentError

from micabox import Sandbox, TimeoutException
from micabox.code.model import Execution, Result

# smolagents has what a tool's functions import imported before them as well. What its own `final_answer` does without
# need not be there: empty modules stand in while the tools are defined, and for no code of the agent's.
_STAND_IN = """
import importlib.util as _util, sys as _sys, types as _types
_absent = [name for name in {modules!r} if _util.find_spec(name) is None]
_sys.modules.update((name, _types.ModuleType(name)) for name in _absent)
"""
_STAND_ASIDE = """
for _name in _absent:
    _sys.modules.pop(_name, None)
    globals().pop(_name, None)
globals().pop("_name", None)
del _absent, _util, _sys, _types
"""
_TEXTS = ("html", "latex", "markdown", "svg", "text")


class MicaboxExecutor(RemotePythonExecutor):
    """A sandbox as an executor. It stays the caller's, who ends it.

    `packages` are installed first, with the sandbox's own pip. Code is interrupted after `timeout` seconds.
    What it finds has to be JSON-like, unless `allow_pickle` trusts the sandbox with this process.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        packages: list[str] | None = None,
        logger: AgentLogger | None = None,
        timeout: float | None = 300,
        allow_pickle: bool = False,
    ) -> None:
        super().__init__(packages or [], logger or AgentLogger(), allow_pickle)
        self._sandbox = sandbox
        self._timeout = timeout
        self.installed_packages: list[str] = self.install_packages(self.additional_imports)

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Installs packages from where the sandbox's pip finds them."""
        if additional_imports:
            command = ["python3", "-m", "pip", "install", "--quiet", "--", *additional_imports]
            self._sandbox.commands.run(command, timeout=None)
        return additional_imports

    def send_tools(self, tools: dict[str, Tool]) -> None:
        """Defines tools in the sandbox, and installs what they import."""
        optional = {"PIL", "numpy"}
        for name, tool in tools.items():
            if name != "final_answer":
                optional -= set(tool.to_dict()["requirements"])
        self.installed_packages += optional
        self.run_code_raise_errors(_STAND_IN.format(modules=sorted(optional)))
        try:
            super().send_tools(tools)
        finally:
            self.run_code_raise_errors(_STAND_ASIDE)

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Runs code; what it raises is an AgentError, which the agent's model is told."""
        try:
            done = self._sandbox.run_code(code, timeout=self._timeout)
        except TimeoutException as failure:
            raise AgentError(str(failure), self.logger) from None
        logs = "".join(done.logs.stdout + done.logs.stderr)
        if done.error is None:
            return CodeOutput(_value(done), logs, is_final_answer=False)
        if done.error.name == self.FINAL_ANSWER_EXCEPTION:
            answer = self._deserialize_final_answer(done.error.value, self.allow_pickle)
            return CodeOutput(answer, logs, is_final_answer=True)
        raise AgentError(f"{logs}\n{done.error.traceback}".lstrip(), self.logger)

    def cleanup(self) -> None:
        """Ends the agent's interpreter; the sandbox stays."""
        self._sandbox.restart_code_context()


def _value(done: Execution) -> Any:
    if not done.results:
        return None
    result: Result = done.results[0]
    if image := result.png or result.jpeg:
        return PIL.Image.open(io.BytesIO(base64.b64decode(image)))
    return next((text for name in _TEXTS if (text := getattr(result, name)) is not None), None)
