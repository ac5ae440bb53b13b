"""The client for programs whose calls block."""
