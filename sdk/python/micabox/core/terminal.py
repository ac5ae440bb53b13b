"""The shell that a terminal gets."""

from __future__ import annotations

ENVS = {"TERM": "xterm-256color"}
SHELL = "if command -v bash >/dev/null; then exec bash -il; else exec sh -il; fi"
