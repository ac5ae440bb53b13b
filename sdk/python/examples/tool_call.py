"""An agent's tool: what a model wants to run is run in a sandbox, and it is told what came of it.

No model is needed to try this: a script stands in for one. Put a client of yours in the place of `model`.
"""

from __future__ import annotations

import json
from typing import Any

from micabox import Sandbox, SandboxException

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "name": "run_python",
        "description": "Runs Python; state stays for the next call. Returns output and the last value.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string"}},
            "required": ["code"],
        },
    },
    {
        "type": "function",
        "name": "run_command",
        "description": "Runs a shell command. Returns its output and exit code.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
]


def call_tool(box: Sandbox, name: str, arguments: str) -> str:
    """Carries out a tool call; whatever goes wrong is told to the model."""
    try:
        given = json.loads(arguments)
        if name == "run_python":
            done = box.run_code(given["code"], timeout=60)
            error = done.error.traceback if done.error else ""
            return "".join(done.logs.stdout + done.logs.stderr) + (done.text or "") + error
        if name == "run_command":
            run = box.commands.capture(given["command"], timeout=60, limit=20_000)
            return f"{run.output.decode(errors='replace')}\nexit code: {run.exit_code}"
        return f"there is no tool `{name}`"
    except (KeyError, ValueError, SandboxException) as failure:
        return f"error: {failure}"


def model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Stands in for a model: it makes one mistake, and corrects it."""
    script = [
        (
            "run_python",
            {"code": "primes = [n for n in range(2, 50) if all(n % d for d in range(2, n))]"},
        ),
        ("run_python", {"code": "sum(prime)"}),
        ("run_python", {"code": "sum(primes)"}),
        ("run_command", {"command": "python3 --version && uname -r"}),
    ]
    turn = sum(message["role"] == "assistant" for message in messages)
    if turn == len(script):
        return {"role": "assistant", "content": f"The sum is {messages[-3]['content']}."}
    name, arguments = script[turn]
    return {"role": "assistant", "call": {"name": name, "arguments": json.dumps(arguments)}}


def main() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Add the primes below 50."}]
    with Sandbox.create("python:3.12-slim", net="none") as box:
        while call := (answer := model(messages)).get("call"):
            result = call_tool(box, call["name"], call["arguments"])
            print(f"{call['name']}: {result}")
            messages += [answer, {"role": "tool", "content": result}]
    print(answer["content"])


if __name__ == "__main__":
    main()
