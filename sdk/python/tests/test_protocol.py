"""The protocol without any input or output."""

import inspect
import json
import pickle
import struct
import unittest
from typing import Any

import micabox
from micabox import (
    CommandExitException,
    CommandResult,
    CommandStartException,
    InUseException,
    InvalidArgumentException,
    ProtocolException,
    SandboxException,
    TimeoutException,
    arguments,
)
from micabox.core.exec import Defaults
from micabox.errors import KINDS, LOST, of_failed, of_file
from micabox.model.options import of_arguments
from micabox.protocol import command
from micabox.protocol.command import CommandState
from micabox.protocol.frames import (
    MAX_DATA,
    MAX_MESSAGE,
    PREAMBLE,
    STDERR,
    STDIN,
    STDOUT,
    Decoder,
    Frame,
    encode,
    encode_data,
)
from micabox.protocol.replies import ReplyDecoder, encode_text, text

from .support import REPOSITORY

_TABLE = json.loads((REPOSITORY / "sdk" / "cases.json").read_text())


def message(number: int, **fields: object) -> Frame:
    return Frame(number, 0, json.dumps(fields).encode())


class FramesTest(unittest.TestCase):
    def test_frames_are_found_however_the_bytes_are_cut(self) -> None:
        sent = PREAMBLE + encode(7, {"type": "info"}) + encode_data(8, STDIN, b"abc")
        for size in (1, 2, 11, 12, 13, len(sent)):
            decoder, found = Decoder(), list[Frame]()
            for start in range(0, len(sent), size):
                found += decoder.feed(sent[start : start + size])
            self.assertEqual(found, [Frame(7, 0, b'{"type":"info"}'), Frame(8, STDIN, b"abc")])

    def test_what_breaks_the_rules_is_refused(self) -> None:
        frames = [
            struct.pack("<IBI", 5, 4, 1),
            struct.pack("<IBI", 4, 0, 1),
            struct.pack("<IBI", MAX_DATA + 6, STDOUT, 1),
            struct.pack("<IBI", MAX_MESSAGE + 6, 0, 1),
        ]
        for frame in frames:
            with self.assertRaises(ProtocolException):
                Decoder().feed(PREAMBLE + frame)
        for preamble in (b"HTTP/1.1 400", PREAMBLE[:8] + struct.pack("<I", 3)):
            with self.assertRaises(ProtocolException):
                Decoder().feed(preamble)
        for body in (b"nonsense", b"[]"):
            with self.assertRaises(ProtocolException):
                Frame(1, 0, body).message()

    def test_a_message_that_is_too_long_is_not_sent(self) -> None:
        with self.assertRaises(InvalidArgumentException):
            encode(1, {"text": "x" * MAX_MESSAGE})


class CommandStateTest(unittest.TestCase):
    def test_output_is_granted_again_once_it_is_taken(self) -> None:
        state = CommandState(3, window=8)
        state.receive(Frame(3, STDOUT, b"abcd"))
        state.receive(Frame(3, STDERR, b"e"))
        first, credit = state.take()
        self.assertEqual(first and first.data, b"abcd")
        self.assertEqual(credit, encode(3, {"type": "credit", "stream": "stdout", "bytes": 4}))
        # Less than a quarter of the window is not worth a message.
        self.assertEqual(state.take()[1], b"")
        self.assertEqual(state.take(), (None, b""))

    def test_output_that_is_held_is_granted_once(self) -> None:
        state = CommandState(3, window=8)
        state.receive(Frame(3, STDOUT, b"abcdefgh"))
        self.assertIn(b'"bytes":8', state.hold())
        self.assertEqual(state.hold(), b"")
        output, credit = state.take()
        self.assertEqual((output and output.data, credit), (b"abcdefgh", b""))

    def test_more_output_than_was_granted_is_refused(self) -> None:
        state = CommandState(3, window=8)
        with self.assertRaises(ProtocolException):
            state.receive(Frame(3, STDOUT, b"abcdefghi"))

    def test_no_more_stdin_is_sent_than_was_granted(self) -> None:
        state = CommandState(3)
        state.receive(message(3, type="started", pid=1, window=MAX_DATA + 1))
        frames, count = state.stdin(memoryview(b"x" * (3 * MAX_DATA)))
        self.assertEqual(count, MAX_DATA + 1)
        sent = Decoder().feed(PREAMBLE + frames)
        self.assertEqual([len(frame.body) for frame in sent], [MAX_DATA, 1])
        self.assertEqual(state.stdin(memoryview(b"x")), (b"", 0))
        state.receive(message(3, type="credit", bytes=1))
        self.assertEqual(state.stdin(memoryview(b"xy"))[1], 1)


class RepliesTest(unittest.TestCase):
    def test_replies_are_found_however_the_bytes_are_cut(self) -> None:
        body = b'{"type":"target","target":"x"}'
        sent = (struct.pack("<I", len(body)) + body) * 2
        decoder, found = ReplyDecoder(), list[object]()
        for byte in sent:
            found += decoder.feed(bytes([byte]))
        self.assertEqual(found, [json.loads(body)] * 2)
        with self.assertRaises(ProtocolException):
            ReplyDecoder().feed(b"\xff\xff\xff\xff")
        with self.assertRaises(ProtocolException):
            ReplyDecoder().feed(b"\1\0\0\0{")

    def test_bytes_that_are_not_utf_8_survive(self) -> None:
        self.assertEqual(encode_text("ä"), "ä")
        self.assertEqual(encode_text("a\udcff"), {"base64": "Yf8="})
        self.assertEqual(text({"base64": "Yf8="}), "a\udcff")
        with self.assertRaises(ProtocolException):
            text(7)


class ErrorsTest(unittest.TestCase):
    def test_every_kind_has_the_exception_of_the_table_of_all_languages(self) -> None:
        kinds = _TABLE["kinds"]
        serve = {
            row["kind"]: getattr(micabox, f"{row['error']}Exception") for row in kinds["serve"]
        }
        owner = {row["word"]: row for row in kinds["owner"]}
        self.assertEqual(owner.pop("start")["error"], "CommandStart")
        expected = serve | {word: serve[row["kind"]] for word, row in owner.items()}
        self.assertEqual(KINDS, expected)
        for word, exception in expected.items():
            failure = of_failed({"kind": word, "message": "why"})
            self.assertEqual((type(failure), failure.kind), (exception, word))
        reasons = {reason: serve[kind] for reason, kind in owner["lost"]["reasons"].items()}
        self.assertEqual(LOST, reasons)
        for reason, exception in reasons.items():
            for lost in ({"reason": reason}, {"reason": {reason: "why"}}):
                failure = of_failed({"kind": "lost", "message": "why", "lost": lost})
                self.assertEqual((type(failure), failure.kind), (exception, "lost"))
        start = {"reason": "other", "message": "why", "errno": 1}
        failure = of_failed({"kind": "start", "message": "why", "start": start})
        self.assertIsInstance(failure, CommandStartException)
        unknown = getattr(micabox, f"{kinds['unknown']['error']}Exception")
        failure = of_failed({"kind": "of a later version"})
        self.assertEqual((type(failure), failure.kind), (unknown, "of a later version"))

    def test_windows_are_those_of_the_table_of_all_languages(self) -> None:
        self.assertEqual(command.WINDOW, _TABLE["limits"]["largest_window"])

    def test_durations_are_sent_as_in_the_table_of_all_languages(self) -> None:
        exec_ = Defaults({}).exec
        for seconds, milliseconds in _TABLE["durations"]["pairs"]:
            self.assertEqual(arguments.milliseconds(seconds), milliseconds)
            self.assertEqual(exec_(["x"], timeout=seconds)["timeout"], milliseconds)
            made = of_arguments({}, timeout=seconds, envs=None, metadata=None)
            self.assertEqual(float(str(made["max_life"])) * 1000, milliseconds)

    def test_every_exception_passes_between_processes(self) -> None:
        special: dict[Any, SandboxException] = {
            CommandExitException: CommandExitException(CommandResult("why", "out", 3)),
            CommandStartException: CommandStartException("no", reason="not_found", errno=2),
        }
        public = [one for _, one in inspect.getmembers(micabox, inspect.isclass)]
        kinds: list[Any] = [one for one in public if issubclass(one, SandboxException)]
        self.assertGreater(len(kinds), 20)
        for kind in kinds:
            with self.subTest(kind.__name__):
                failure = special.get(kind) or kind("the message")
                failure.hint = "the next step"
                again = pickle.loads(pickle.dumps(failure))
                self.assertEqual(again.__class__, kind)
                self.assertEqual((str(again), vars(again)), (str(failure), vars(failure)))

    def test_a_failure_has_its_kind_message_and_hint(self) -> None:
        failure = of_failed({"kind": "in_use", "message": "the port", "hint": "another one"})
        self.assertIsInstance(failure, InUseException)
        self.assertEqual(str(failure), "the port\nhint: another one")
        silent = of_failed({"kind": "silent", "message": "no answer"})
        self.assertIsInstance(silent, TimeoutException)
        console = {"reason": {"machine": "powered_off"}, "console": "a\nb"}
        ended = of_failed({"kind": "lost", "message": "it ended", "lost": console})
        self.assertTrue(str(ended).startswith("it ended\na\nb"), ended)
        self.assertEqual(
            of_file("read", "/x", 5, "").args, ("cannot read `/x`: Input/output error",)
        )
