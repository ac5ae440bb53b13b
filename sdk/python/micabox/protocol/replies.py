"""Replies of operations on files: a length and JSON each, in a stream of bytes."""

from __future__ import annotations

import json
import struct
from typing import Any, cast

from micabox.arguments import invalid
from micabox.errors import ProtocolException
from micabox.protocol.frames import parse

# As long as the longest path and its description are, with room.
_MAX = 1 << 20


class ReplyDecoder:
    """Finds the replies in a stream."""

    def __init__(self, most: int = _MAX) -> None:
        self._most = most
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Takes bytes; returns the replies that they complete."""
        self._buffer += data
        replies: list[dict[str, Any]] = []
        while len(self._buffer) >= 4:
            (length,) = struct.unpack_from("<I", self._buffer)
            if length > self._most:
                raise ProtocolException(f"a reply of {length} bytes")
            if len(self._buffer) < 4 + length:
                break
            try:
                reply = parse(self._buffer[4 : 4 + length].decode())
            except ValueError as error:
                raise ProtocolException(f"a reply is not JSON: {error}") from None
            del self._buffer[: 4 + length]
            if not isinstance(reply, dict):
                raise ProtocolException("a reply is not an object")
            replies.append(cast("dict[str, Any]", reply))
        return replies


def encode_reply(value: dict[str, Any]) -> bytes:
    """A length and JSON, for an operation's stdin."""
    body = json.dumps(value).encode()
    return struct.pack("<I", len(body)) + body


def text(value: Any) -> str:
    """A string of the protocol; bytes that are not UTF-8 become surrogates, as in `os.fsdecode`."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and "base64" in value:
        import base64

        encoded = cast("dict[str, Any]", value)["base64"]
        return base64.b64decode(str(encoded)).decode("utf-8", "surrogateescape")
    raise ProtocolException("neither a string nor bytes")


def encode_text(value: str) -> Any:
    """A string for the protocol: surrogates, as `os.fsdecode` makes them, become bytes again."""
    try:
        value.encode()
    except UnicodeEncodeError:
        import base64

        try:
            data = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise invalid(f"a string stands for no bytes: {error}") from None
        return {"base64": base64.b64encode(data).decode()}
    return value
