/** Where `mica` is. */

import { createRequire } from "node:module";
import { dirname, join } from "node:path";

/** The package with the programs for this platform, an optional dependency of this one. */
const PLATFORM = `@micabox/${process.platform}-${process.arch}`;

/** The program: `$MICABOX_MICA`, the one of the platform's package, or `mica` on PATH. */
export function program(): string {
  const named = process.env["MICABOX_MICA"];
  if (named) return named;
  try {
    const described = createRequire(import.meta.url).resolve(`${PLATFORM}/package.json`);
    return join(dirname(described), "bin", "mica");
  } catch {
    return "mica"; // not installed
  }
}
