/** The schema of the protocol says what its page says, and what `mica` does. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFile } from "node:fs/promises";
import { connect } from "node:net";
import type { Readable, Writable } from "node:stream";
import { test } from "node:test";

import { Decoder, encode, Kind, PREAMBLE } from "../src/protocol/frame.js";
import { schema, wrong } from "./schema.js";
import { hostBox } from "./support.js";

const page = await readFile(new URL("../../../../docs/protocol.md", import.meta.url), "utf8");
const KINDS = ["ServeRequest", "ServeReply", "PullReport", "OwnerRequest", "OwnerReply", "FileRequest", "FileReply"];

/** What the page has below a heading, up to the next one. */
function section(heading: string): string {
  const [, text] = page.split(`\n${heading}\n`);
  assert.ok(text !== undefined, heading);
  return text.split(/\n##+ /)[0] ?? "";
}

/** The names in the first column of the tables there, without their heads. */
function named(heading: string): string[] {
  const rows = section(heading).replace(/^.*\n\|[-:|]+\|$/gm, "");
  return [...rows.matchAll(/^\| (`.*?`) \|/gm)].flatMap(([, cell]) => cell?.match(/\w+/g) ?? []);
}

/** The words in `type` that messages of this kind have. */
function types(kind: string): string[] {
  return (schema.$defs[kind]?.oneOf ?? []).map(({ properties }) => String(properties?.["type"]?.const));
}

/** The words that a field of this type has. */
function words(name: string): string[] {
  return (schema.$defs[name]?.oneOf ?? []).map((one) => String(one.const));
}

test("messages on the page are valid", () => {
  const blocks = [...page.matchAll(/^```json\n(.*?)^```/gms), ...page.matchAll(/`(\{.*?\})`/gs)].map(([, text]) => text ?? "");
  const messages = blocks.flatMap((text): { type?: unknown }[] => {
    try {
      return [JSON.parse(text) as { type?: unknown }];
    } catch {
      return []; // It has names in place of values.
    }
  });
  const whole = messages.filter(({ type }) => typeof type === "string");
  assert.ok(whole.length >= 5, `${whole.length}`);
  for (const message of whole) assert.equal(wrong(message, ...KINDS), undefined);
});

test("the page names the messages and fields that there are", () => {
  const sorted = (names: string[]): string[] => [...new Set(names)].sort();
  assert.deepEqual(sorted(named("## Serve")), sorted([...types("ServeRequest"), ...words("ErrorKind")]));
  assert.deepEqual(sorted(named("## Requests")), sorted(types("OwnerRequest")));
  assert.deepEqual(sorted(named("### Files")), sorted(types("FileRequest")));
  const fields = (name: string): string[] => Object.keys(schema.$defs[name]?.properties ?? {});
  assert.deepEqual(sorted(named("### `exec`")), sorted(fields("Exec")));
  assert.deepEqual(sorted(named("### `info`")), sorted(fields("Info")));
  assert.deepEqual(sorted(named("### `stats`")), sorted(fields("Stats")));
  assert.deepEqual(sorted(named("## Failures")), sorted(words("FailureKind")));
  for (const kind of ["ServeReply", "PullReport", "OwnerReply", "FileReply"]) {
    for (const type of types(kind)) assert.ok(page.includes(`\`${type}\``), `${kind}: ${type}`);
  }
});

/** Values of which a field takes some at most. */
const VALUES = [null, true, -1, 1.5, 2 ** 40, "no such", ["a", 1], {}, { base64: "*" }];

/** A request, and each that has another value in one of its fields, or lacks it. */
function* variants(request: Record<string, unknown>): Generator<Record<string, unknown>> {
  yield request;
  yield { ...request, unknown: {} };
  for (const field of Object.keys(request)) {
    const { [field]: _, ...rest } = request;
    yield rest;
    for (const value of VALUES) yield { ...request, [field]: value };
  }
}

/** Whether what is at the other end takes requests for well-formed ones, each by its first answer. */
async function* taken(from: Readable, to: Writable, requests: object[]): AsyncGenerator<[object, boolean]> {
  to.write(PREAMBLE);
  requests.forEach((request, at) => to.write(encode(Kind.message, at + 1, Buffer.from(JSON.stringify(request)))));
  const decoder = new Decoder();
  const answers = new Map<number, string>();
  for await (const bytes of from) {
    for (const { kind, number, body } of decoder.push(bytes as Uint8Array)) {
      const text = Buffer.from(body).toString();
      if (kind !== Kind.message || number === 0 || answers.has(number)) continue;
      answers.set(number, text);
      const { type, kind: why, message = "" } = JSON.parse(text) as { type: string; kind?: string; message?: string };
      const isMalformed = type === "failed" && why === "invalid" && message.startsWith("the request is malformed");
      yield [requests[number - 1] ?? {}, !isMalformed];
    }
    if (answers.size === requests.length) return;
  }
  assert.fail(`${requests.length - answers.size} are not answered`);
}

async function agree(kind: string, from: Readable, to: Writable, requests: Record<string, unknown>[]): Promise<void> {
  const counts = { right: 0, wrong: 0 };
  for await (const [request, isTaken] of taken(from, to, requests.flatMap((one) => [...variants(one)]))) {
    const why = wrong(request, kind);
    assert.equal(why === undefined, isTaken, why ?? JSON.stringify(request));
    counts[isTaken ? "right" : "wrong"]++;
  }
  assert.ok(counts.right > requests.length && counts.wrong > requests.length, JSON.stringify(counts));
}

test("the schema takes the requests that mica serve takes", async () => {
  const helper = spawn(process.env["MICABOX_MICA"] ?? "mica", ["serve", "--stdio"], { stdio: ["pipe", "pipe", "inherit"] });
  await agree("ServeRequest", helper.stdout, helper.stdin, [
    { type: "command", args: ["version"], stdin: false, window: 65536 },
    { type: "fork", sandbox: "no-such", count: 2 },
    { type: "detach", sandbox: "no-such" },
    { type: "create", progress: false },
  ]);
  helper.stdin.end();
});

test("the schema takes the requests that an owner takes", async () => {
  const box = await hostBox();
  const socket = connect(`${process.env["MICABOX_HOME"]}/sandboxes/${box.sandboxId}/control`);
  const streams = { stdin: "null", stdout: "null", stderr: "null", window: 65536 };
  await agree("OwnerRequest", socket, socket, [
    { type: "exec", argv: ["true"], ...streams, env: [["A", "b"]], workdir: "/", user: "", tty: null, confinement: {}, grace: 1, note: "" },
    { type: "exec", argv: ["true"], confinement: { capabilities: 1, groups: ["0"], ulimits: [] } },
    { type: "attach", pid: 1, ...streams },
    { type: "commands" },
    { type: "signal_first", signal: 0 },
    { type: "expire", idle_timeout: 0, max_life: 0 },
    { type: "limit", limit: { processes: 100 } },
    { type: "limit", limit: { network: { incoming: null, outgoing: 1 } } },
    { type: "rename", name: "schema-test" },
    { type: "stats" },
    { type: "info" },
  ]);
  socket.destroy();
  await box.kill();
});
