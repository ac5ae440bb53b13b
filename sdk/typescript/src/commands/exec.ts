/** The request that starts a command. */

import { InvalidArgumentError } from "../errors.js";
import { timeLimit } from "../protocol/number.js";
import { encodeText, textString, type Text } from "../protocol/text.js";
import type { SandboxRecord } from "../sandbox/record.js";

/** Milliseconds between the stop signal and SIGKILL, when a command's time is over. */
export const GRACE = 2000;

/** As what a command runs. */
export interface ExecOptions {
  /** Working directory, from the sandbox's; it must be there. */
  cwd?: string;
  /** `name`, `uid`, `name:group` and so on; the sandbox's unless given. */
  user?: string;
  /** Variables beside those of the sandbox. */
  envs?: Record<string, string>;
  /** Milliseconds until the command is ended; no limit unless given, or with 0 or Infinity. */
  timeoutMs?: number;
}

/** What a sandbox's commands are given unless the caller wants something else. */
export class Defaults {
  readonly #record: SandboxRecord;

  constructor(record: SandboxRecord) {
    this.#record = record;
  }

  /** A path from the working directory as one from the root. */
  path(path: string): string {
    if (path.includes("\0")) throw new InvalidArgumentError("a path has no NUL bytes", { kind: "invalid" });
    if (path.startsWith("/")) return path;
    return `${textString(this.#record.defaults.workdir).replace(/\/*$/, "/")}${path}`;
  }

  user(user: string | undefined): string {
    return user ?? this.#record.defaults.user;
  }

  exec(argv: readonly string[], { cwd, user, envs = {}, timeoutMs = 0 }: ExecOptions): object {
    const { env, workdir } = this.#record.defaults;
    checkEnvs(envs);
    const given = Object.entries(envs).map(([name, value]): [Text, Text] => [encodeText(name), encodeText(value)]);
    const kept = env.filter(([name]) => !Object.hasOwn(envs, textString(name)));
    const timeout = timeLimit("timeoutMs", timeoutMs);
    return {
      argv: argv.map(encodeText),
      env: [...kept, ...given],
      workdir: cwd === undefined ? workdir : encodeText(this.path(cwd)),
      // The image may lack its own.
      make_workdir: cwd === undefined || this.path(cwd) === textString(workdir),
      user: this.user(user),
      timeout,
      grace: timeout > 0 ? GRACE : 0,
    };
  }
}

/** @throws InvalidArgumentError if Linux has no such variables */
export function checkEnvs(envs: Record<string, string>): void {
  for (const [name, value] of Object.entries(envs)) {
    const isName = name !== "" && !/[=\0]/.test(name);
    if (isName && typeof value === "string" && !value.includes("\0")) continue;
    throw new InvalidArgumentError(`\`${name}\` of envs is no name and value of a variable`, { kind: "invalid" });
  }
}
