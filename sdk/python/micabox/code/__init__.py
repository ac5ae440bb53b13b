"""Code that runs in a sandbox and keeps its state between calls."""

from micabox.code.model import Execution, ExecutionError, Logs, OutputMessage, Result

__all__ = ["Execution", "ExecutionError", "Logs", "OutputMessage", "Result"]
