import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { promisify } from "node:util";
import { fileURLToPath } from "node:url";

import { IMAGE, micaSays } from "./support.js";

test("the README's example does what it says, as an importer of the package", async () => {
  const [readme, example] = await Promise.all(
    ["README.md", "examples/readme.ts"].map((path) => readFile(new URL(`../../${path}`, import.meta.url), "utf8")),
  );
  assert.ok(readme?.includes(`\`\`\`ts\n${example}\`\`\``), "README.md has another example than examples/readme.ts");
  // An image with Python, by the name that the example has.
  await micaSays("tag", IMAGE, "python:3.12-slim");
  const { stdout } = await promisify(execFile)(process.execPath, [fileURLToPath(new URL("../examples/readme.js", import.meta.url))]);
  assert.equal(stdout, "3\na.csv 12\n");
});
