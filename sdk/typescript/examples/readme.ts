import { Sandbox } from "micabox";

await using box = await Sandbox.create("python:3.12-slim", { memory: "1g" });
await box.files.write("/tmp/work/a.csv", "x,y\n1,2\n3,4\n");
const count = "print(sum(1 for line in open('a.csv')))";
await box.commands.run(["python3", "-c", count], {
  cwd: "/tmp/work",
  timeoutMs: 60_000,
  onStdout: (text) => void process.stdout.write(text),
});
for (const { name, size } of await box.files.list("/tmp/work")) console.log(name, size);
