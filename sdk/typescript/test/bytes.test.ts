import assert from "node:assert/strict";
import { test } from "node:test";

import { Text } from "../src/commands/text.js";
import { errorOf, ProtocolError } from "../src/errors.js";
import { entryBelow } from "../src/files/entry.js";
import { ReplyDecoder } from "../src/files/replies.js";
import { Decoder, encode, Kind, MAX_DATA, PREAMBLE } from "../src/protocol/frame.js";
import { encodeText, textBytes, textString } from "../src/protocol/text.js";

test("frames come out as they went in, whatever the pieces", () => {
  const sent = [
    { kind: Kind.message, number: 7, body: Buffer.from("{}") },
    { kind: Kind.stdout, number: 0xffff_ffff, body: Buffer.alloc(MAX_DATA, 1) },
    { kind: Kind.stderr, number: 7, body: Buffer.alloc(0) },
  ];
  const bytes = Buffer.concat([PREAMBLE, ...sent.map(({ kind, number, body }) => encode(kind, number, body))]);
  for (const size of [1, 3, 4096, bytes.length]) {
    const decoder = new Decoder();
    const frames = [];
    for (let at = 0; at < bytes.length; at += size) frames.push(...decoder.push(bytes.subarray(at, at + size)));
    assert.deepEqual(
      frames.map((frame) => ({ ...frame, body: Buffer.from(frame.body) })),
      sent,
    );
  }
});

test("an output that is longer than a string is an error with a way out", () => {
  const text = new Text(4);
  text.add(Buffer.from("aä€").subarray(0, 4));
  text.add(Buffer.from("€").subarray(1));
  assert.equal(text.text, "aä€");
  const error = { name: "NotEnoughSpaceError", kind: "full", message: /a string holds, 4 characters\nhint: `capture: false`/ };
  assert.throws(() => text.add(Buffer.from("xy")), error);
  assert.equal(text.text, "aä€");
});

test("bytes that break the protocol are an error", () => {
  const broken = [
    Buffer.from("HTTP/1.1 400 Bad Request"),
    Buffer.from("MICAOWN\n\x03\0\0\0", "latin1"),
    Buffer.concat([PREAMBLE, encode(Kind.stdout, 1, Buffer.alloc(MAX_DATA + 1))]),
    Buffer.concat([PREAMBLE, encode(Kind.stdin, 1, Buffer.alloc(1))]),
    Buffer.concat([PREAMBLE, encode(9, 1, Buffer.alloc(1))]),
    Buffer.concat([PREAMBLE, Buffer.alloc(9)]),
    Buffer.concat([PREAMBLE, Buffer.alloc(9, 0xff)]),
  ];
  for (const bytes of broken) assert.throws(() => new Decoder().push(bytes), ProtocolError);
});

test("replies of a guest that lies are an error", () => {
  const reply = (value: unknown): Buffer => {
    const json = Buffer.from(typeof value === "string" ? value : JSON.stringify(value));
    const length = Buffer.alloc(4);
    length.writeUInt32LE(json.length);
    return Buffer.concat([length, json]);
  };
  const stat = { kind: "file", mode: 0o644, uid: 0, gid: 0, size: 1, modified: { seconds: 1, nanos: 2 } };
  const entry = { type: "entry", path: "a", stat, target: "" };
  const bytes = reply(entry);
  const decoder = new ReplyDecoder();
  assert.deepEqual([...bytes].flatMap((byte) => decoder.push(Buffer.from([byte]))), [entry]);
  const lies = ["no JSON", null, { ...entry, path: 7 }, { ...entry, stat: null }, { ...entry, stat: { ...stat, size: "1" } }, { type: "stat", ...stat, modified: 1 }];
  for (const lie of lies) assert.throws(() => new ReplyDecoder().push(reply(lie)), ProtocolError, JSON.stringify(lie));
  assert.throws(() => new ReplyDecoder().push(Buffer.alloc(4, 0xff)), ProtocolError);
  for (const path of ["..", "a/../b", "/etc", ""]) assert.throws(() => entryBelow("/srv", path, stat, ""), ProtocolError);
  assert.equal(entryBelow("/", "a/b", stat, "").path, "/a/b");
});

test("the error for a sandbox that was lost has its console", () => {
  const failed = { kind: "lost", message: "the machine ended", lost: { console: "one\ntwo\n" } };
  assert.equal(errorOf(failed).message, "the machine ended\none\ntwo");
  assert.equal(errorOf({ ...failed, lost: { console: "" } }).message, "the machine ended");
});

test("text that is not UTF-8 is kept", () => {
  assert.equal(encodeText("\u{1f980}"), "\u{1f980}");
  assert.throws(() => encodeText("\ud83e"), { name: "InvalidArgumentError", kind: "invalid" });
  const bytes = Buffer.from([0xff, 0x61]);
  assert.deepEqual(textBytes(encodeText(bytes)), bytes);
  assert.equal(textString(encodeText(bytes)), "\ufffda");
});
