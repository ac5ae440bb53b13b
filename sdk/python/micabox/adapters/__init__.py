"""Micabox as the sandbox of other frameworks. Each module needs its framework, and is imported alone:

`deepagents` (LangChain), `inspect_ai` (Inspect), `smolagents`, `openai_agents`, `harbor`.
"""
