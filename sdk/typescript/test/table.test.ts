/** Kinds of errors, limits and durations: what all SDKs share beside the cases, sdk/cases.json. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

import { ANSWER_TIMEOUT as processes } from "../src/commands/commands.js";
import { errorOf, type Failed, KINDS, LOST } from "../src/errors.js";
import { ANSWER_TIMEOUT as files } from "../src/files/operation.js";
import * as micabox from "../src/index.js";
import { WINDOW } from "../src/protocol/connection.js";
import { timeLimit } from "../src/protocol/number.js";
import { requestOptions } from "../src/sandbox/options.js";

interface Word {
  word: string;
  kind: string;
  error?: string;
  reasons?: Record<string, string>;
}

interface Table {
  limits: { files: number; processes: number; window: number };
  durations: { pairs: [number, number][] };
  kinds: { serve: { kind: string; error: string }[]; owner: Word[]; unknown: { error: string } };
}

const table = JSON.parse(await readFile(new URL("../../../cases.json", import.meta.url), "utf8")) as Table;

function classOf(error: string): typeof micabox.SandboxError {
  const found = (micabox as unknown as Record<string, typeof micabox.SandboxError>)[`${error}Error`];
  assert.ok(found !== undefined, error);
  return found;
}

function checkError(failed: Failed, expected: typeof micabox.SandboxError): void {
  const error = errorOf({ message: "why", ...failed });
  assert.deepEqual([error.constructor, error.kind], [expected, failed.kind]);
}

test("every kind has the class of the table of all languages", () => {
  const { serve, owner, unknown } = table.kinds;
  const classes = Object.fromEntries(serve.map(({ kind, error }) => [kind, classOf(error)]));
  const words = owner.filter(({ word }) => word !== "start");
  const of = (kind: string): typeof micabox.SandboxError => classes[kind] ?? assert.fail(kind);
  const expected = { ...classes, ...Object.fromEntries(words.map(({ word, kind }) => [word, of(kind)])) };
  assert.deepEqual(KINDS, expected);
  for (const [kind, one] of Object.entries(expected)) checkError({ kind }, one);

  const reasons = Object.entries(owner.find(({ word }) => word === "lost")?.reasons ?? {});
  assert.deepEqual(LOST, Object.fromEntries(reasons.map(([reason, kind]) => [reason, of(kind)])));
  for (const [reason, kind] of reasons) {
    checkError({ kind: "lost", lost: { reason } }, of(kind));
    checkError({ kind: "lost", lost: { reason: { [reason]: "why" } } }, of(kind));
  }

  const start = owner.find(({ word }) => word === "start")?.error ?? assert.fail();
  checkError({ kind: "start", start: { reason: "other", message: "why", errno: 1 } }, classOf(start));
  for (const kind of ["of a later version", "constructor"]) checkError({ kind }, classOf(unknown.error));
});

test("a sandbox may be silent for as long as in every language", () => {
  assert.deepEqual([files, processes], [table.limits.files, table.limits.processes]);
});

test("as much of an output may be unread as in every language", () => assert.equal(WINDOW, table.limits.window));

test("durations are sent as in every language", () => {
  for (const [seconds, milliseconds] of table.durations.pairs) {
    // 70.00000000000001 is no more than 70.
    const timeoutMs = Number((seconds * 1000).toFixed(6));
    assert.equal(timeLimit("timeoutMs", timeoutMs), milliseconds);
    assert.equal(requestOptions({ timeoutMs })["max-life"], `${milliseconds / 1000}s`);
  }
});
