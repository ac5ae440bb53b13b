"""Frames: how messages and bytes of streams are told apart on one connection."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any, cast

from micabox.errors import InvalidArgumentException, ProtocolException

VERSION = 2
PREAMBLE = b"MICAOWN\n" + struct.pack("<I", VERSION)

MESSAGE = 0
STDIN = 1
STDOUT = 2
STDERR = 3

MAX_MESSAGE = 8 << 20
MAX_DATA = 32 << 10

_HEAD = struct.Struct("<IBI")
# Kind and number, which the length counts too.
_COUNTED = 5

# Made once: json.dumps() makes one for each call that wants another than its own.
_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
parse = json.JSONDecoder().decode


@dataclass(frozen=True)
class Frame:
    """A message in JSON, or bytes of a stream; no bytes end it."""

    number: int
    kind: int
    body: bytes

    def message(self) -> dict[str, Any]:
        """The message; an exception if it is none."""
        try:
            message = parse(self.body.decode())
        except ValueError as error:
            raise ProtocolException(f"a message is not JSON: {error}") from None
        if not isinstance(message, dict):
            raise ProtocolException("a message is not an object")
        return cast("dict[str, Any]", message)


def encode(number: int, message: dict[str, Any]) -> bytes:
    """A message as a frame. Raises InvalidArgumentException for what JSON in UTF-8 can't carry."""
    try:
        body = _JSON.encode(message).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentException(
            f"the request has a value that can't be sent: {error}", kind="invalid"
        ) from None
    return encode_data(number, MESSAGE, body)


def encode_data(number: int, kind: int, body: bytes) -> bytes:
    """Bytes as a frame."""
    if len(body) > (MAX_DATA if kind else MAX_MESSAGE):
        raise InvalidArgumentException(
            "the request is longer than a frame of the protocol", kind="invalid"
        )
    return _HEAD.pack(len(body) + _COUNTED, kind, number) + body


class Decoder:
    """Finds the frames in what was received; begins with the preamble."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._begun = False

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Takes bytes; returns the frames that they complete."""
        self._buffer += data
        if not self._begun:
            head = bytes(self._buffer[: len(PREAMBLE)])
            if head != PREAMBLE[: len(head)]:
                raise ProtocolException(
                    f"the other side does not speak version {VERSION} of the protocol"
                )
            if len(head) < len(PREAMBLE):
                return []
            self._begun = True
            del self._buffer[: len(PREAMBLE)]
        frames: list[Frame] = []
        start = 0
        # Slices of a view are copied once.
        with memoryview(self._buffer) as view:
            while len(view) - start >= _HEAD.size:
                length, kind, number = _HEAD.unpack_from(view, start)
                most = MAX_DATA if kind else MAX_MESSAGE
                if kind > STDERR or not _COUNTED <= length <= most + _COUNTED:
                    raise ProtocolException(f"a frame of kind {kind} with {length} bytes")
                end = start + length + _HEAD.size - _COUNTED
                if len(view) < end:
                    break
                frames.append(Frame(number, kind, bytes(view[start + _HEAD.size : end])))
                start = end
        del self._buffer[:start]
        return frames
