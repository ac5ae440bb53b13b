"""The protocol of docs/protocol.md without any input or output."""
