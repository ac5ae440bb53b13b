// Opens the site's pages in Chromium: `node screenshots.mjs WORK`; see scripts/screenshots.
import { mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { extname, join, resolve, sep } from "node:path";

const work = resolve(process.argv[2]);
const root = join(work, "html");
const pictures = join(work, "pictures");
const { chromium } = createRequire(join(work, "npm", "_"))("playwright-core");

const SIZES = [390, 1280];
// Pages of each kind; every page is opened, and these are drawn.
const DRAWN = [
  "index.html",
  "docs/guide.html",
  "docs/protocol.html",
  "docs/design/host.html",
  "reference/python/sandboxes.html",
  "reference/commands/mica-run.html",
  "reference/typescript/interfaces/SandboxOptions.html",
  "reference/rust/index.html",
];
const TYPES = { ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".json": "application/json" };

const server = createServer(({ url }, response) => {
  const path = resolve(root, `.${decodeURIComponent(new URL(url, "http://site").pathname)}`);
  try {
    if (!path.startsWith(root + sep)) throw new Error("not of the site");
    response.setHeader("content-type", TYPES[extname(path)] ?? "application/octet-stream");
    response.end(readFileSync(path));
  } catch {
    response.writeHead(404).end();
  }
});
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const origin = `http://127.0.0.1:${server.address().port}`;

const browser = await chromium.launch({ executablePath: "/usr/bin/chromium-headless-shell", args: ["--no-sandbox"] });
const problems = new Set();

async function open(colorScheme, width, paths, then) {
  const context = await browser.newContext({ colorScheme, viewport: { width, height: 900 } });
  await context.route("**", (route) => {
    const url = route.request().url();
    // Not the index of all pages, which each page would read for its search.
    if (url.startsWith(`${origin}/search/`)) return route.abort();
    if (url.startsWith(origin) || url.startsWith("data:")) return route.continue();
    problems.add(`${route.request().frame().url().slice(origin.length)} asks for ${url}`);
    return route.abort();
  });
  const page = await context.newPage();
  page.setDefaultTimeout(120_000); // on a busy machine
  for (const path of paths) {
    await page.goto(`${origin}/${path}`, { waitUntil: "load" });
    await then(page, path);
  }
  await context.close();
}

const html = readdirSync(root, { recursive: true }).filter((path) => path.endsWith(".html"));
// rustdoc's pages are its own affair; how ours look is checked on all of them.
const ours = html.filter((path) => !/^reference\/rust\/.+\//.test(path)).sort();
rmSync(pictures, { recursive: true, force: true });
mkdirSync(pictures, { recursive: true });
for (const scheme of ["light", "dark"]) {
  for (const width of SIZES) {
    const there = DRAWN.filter((path) => ours.includes(path));
    await open(scheme, width, there, (page, path) =>
      page.screenshot({ path: join(pictures, `${path.replace(/\.html$/, "").replaceAll("/", "-")}-${scheme}-${width}.png`) }),
    );
  }
}
// Colours change no width, so one scheme is enough.
for (const width of SIZES) {
  await open("light", width, ours, async (page, path) => {
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    if (wide > width) problems.add(`${path} is ${wide} pixels wide on a screen of ${width}`);
  });
}
await browser.close();
server.close();
for (const problem of problems) console.error(`screenshots: ${problem}`);
console.log(`screenshots: ${ours.length} pages; pictures are in ${pictures}`);
process.exit(problems.size === 0 ? 0 : 1);
