"""Tests of the Python SDK against real sandboxes; `scripts/test-python` runs them."""
