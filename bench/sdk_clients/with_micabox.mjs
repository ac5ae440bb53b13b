// The TypeScript SDK as a client that is measured: {"do": "rounds" | "looks", "count": N} a line, and a line of
// JSON for each, with the seconds that each command took, or each look for a file.
//
//     node with_micabox.mjs SDK SANDBOX
import { createInterface } from "node:readline";

const [sdk, name] = process.argv.slice(2);
const { Sandbox } = await import(sdk);
const box = await Sandbox.connect(name);
for await (const line of createInterface({ input: process.stdin })) {
  const { do: what, count } = JSON.parse(line);
  const took = [];
  for (let number = 0; number < count; number += 1) {
    const start = performance.now();
    await (what === "looks" ? box.files.exists("/etc/passwd") : box.commands.run("true"));
    took.push((performance.now() - start) / 1e3);
  }
  console.log(JSON.stringify(took));
}
process.exit(0);
