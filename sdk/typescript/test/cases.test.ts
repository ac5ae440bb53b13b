/** Wrong input: the table that all SDKs share, sdk/cases.json. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";

import * as micabox from "../src/index.js";
import { Sandbox, SandboxError, type SandboxOptions } from "../src/index.js";
import { hostBox, IMAGE, until } from "./support.js";

interface Case {
  name: string;
  do: string;
  error: string;
  kind?: string;
  reason?: string;
  ended?: boolean;
  killed?: boolean;
  image?: string | null;
  options?: SandboxOptions;
  sandbox?: string;
  cmd?: string | string[];
  user?: string;
  cwd?: string;
  seconds?: number;
  pid?: number;
  path?: string;
  data?: string;
  port?: number;
  count?: number;
}

const OPTIONS: SandboxOptions = { tmpfs: ["/small:size=64k"] };
const { cases } = JSON.parse(await readFile(new URL("../../../cases.json", import.meta.url), "utf8")) as { cases: Case[] };

let box: Sandbox;
before(async () => {
  box = await hostBox(OPTIONS);
});
after(() => box.kill());

test("the table has cases", () => assert.ok(cases.length > 20));

for (const one of cases) {
  test(`wrong input: ${one.name}`, async () => {
    const own = one.ended === true || one.killed === true ? await hostBox(OPTIONS) : box;
    try {
      if (one.ended === true) await own.kill();
      if (one.killed === true) void killSoon(own);
      await assert.rejects(perform(whole(one) as Case, own), (error: unknown) => {
        const expected = (micabox as unknown as Record<string, typeof SandboxError>)[`${one.error}Error`];
        assert.ok(expected !== undefined && error instanceof expected, String(error));
        if (one.kind !== undefined) assert.equal(error.kind, one.kind);
        if (one.reason !== undefined) assert.equal((error as micabox.CommandStartError).reason, one.reason);
        return true;
      });
    } finally {
      if (own !== box) await own.kill();
    }
  });
}

async function perform(one: Case, box: Sandbox): Promise<unknown> {
  const { image = IMAGE, path = "" } = one;
  const limits = {
    ...(one.user === undefined ? {} : { user: one.user }),
    ...(one.cwd === undefined ? {} : { cwd: one.cwd }),
    ...(one.seconds === undefined ? {} : { timeoutMs: one.seconds * 1000 }),
  };
  switch (one.do) {
    case "create": {
      const options: SandboxOptions = { backend: "host", net: "none", ...one.options };
      return image === null ? Sandbox.create(options) : Sandbox.create(image, options);
    }
    case "connect":
      return Sandbox.connect(one.sandbox ?? "");
    case "run":
      return box.commands.run(one.cmd ?? "", limits);
    case "attach":
      return box.commands.connect(one.pid ?? 0);
    case "read":
      return box.files.read(path);
    case "write":
      return box.files.write(path, one.data ?? "");
    case "host":
      return box.getHost(one.port ?? 0);
    case "fork":
      return box.fork({ count: one.count ?? 1 });
    default:
      throw new Error(one.do);
  }
}

/** A value of the table, with what stands for another one replaced. */
function whole(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(whole);
  if (typeof value !== "object" || value === null) return value;
  const { repeat, of } = value as { repeat?: [string, number]; of?: string };
  if (repeat !== undefined) return repeat[0].repeat(repeat[1]);
  if (of !== undefined) return box.name;
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, whole(one)]));
}

async function killSoon(box: Sandbox): Promise<void> {
  await until("it runs", async () => (await box.commands.list()).some(({ cmd }) => cmd === "sleep 100"));
  await box.kill();
}
