"""A sandbox client of the OpenAI Agents SDK.

options = MicaboxSandboxClientOptions(image="python:3.12-slim")
config = RunConfig(sandbox=SandboxRunConfig(client=MicaboxSandboxClient(), options=options))
await Runner.run(SandboxAgent(name="coder", model=model), "Write a prime sieve.", run_config=config)
"""

from micabox.adapters.openai_agents.client import MicaboxSandboxClient
from micabox.adapters.openai_agents.session import (
    MicaboxSandboxClientOptions,
    MicaboxSandboxSession,
    MicaboxSandboxSessionState,
)

__all__ = [
    "MicaboxSandboxClient",
    "MicaboxSandboxClientOptions",
    "MicaboxSandboxSession",
    "MicaboxSandboxSessionState",
]
