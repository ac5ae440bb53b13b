// TypeScript's reference as Markdown: `node typescript.mjs WORK` makes WORK/typescript with what is in WORK/npm.
import { writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const work = resolve(process.argv[2]);
const sdk = resolve("sdk/typescript");
const npm = join(work, "npm");
const { Application } = await import(pathToFileURL(createRequire(join(npm, "_")).resolve("typedoc")).href);

// The SDK's own settings, with types from where typedoc is.
const tsconfig = join(npm, "tsconfig.json");
const compilerOptions = { rootDir: join(sdk, "src"), typeRoots: [join(npm, "node_modules/@types")], noEmit: true };
writeFileSync(tsconfig, JSON.stringify({ extends: join(sdk, "tsconfig.json"), compilerOptions, include: [join(sdk, "src")] }));

const app = await Application.bootstrapWithPlugins({
  entryPoints: [join(sdk, "src/index.ts")],
  tsconfig,
  plugin: [createRequire(join(npm, "_")).resolve("typedoc-plugin-markdown")],
  name: "TypeScript",
  readme: "none",
  disableSources: true,
  excludePrivate: true,
  excludeInternal: true,
  treatWarningsAsErrors: true,
  hideBreadcrumbs: true,
  hidePageHeader: true,
  // Each option, method and property says what it is.
  validation: { notDocumented: true },
  requiredToBeDocumented: ["Class", "Interface", "Function", "Property", "Method", "Accessor", "TypeAlias", "Variable"],
  pageTitleTemplates: { member: "{name}" },
  parametersFormat: "table",
  interfacePropertiesFormat: "list",
});
const project = await app.convert();
if (project) app.validate(project);
if (!project || app.logger.hasErrors() || app.logger.hasWarnings()) process.exit(1);
app.options.setValue("out", join(work, "typescript"));
await app.generateOutputs(project);
if (app.logger.hasErrors() || app.logger.hasWarnings()) process.exit(1);
