/** What is known of a file in a sandbox. */

import { posix } from "node:path";

import { ProtocolError } from "../errors.js";
import { textBytes, textString, type Text } from "../protocol/text.js";
import type { Stat } from "./replies.js";

/** Kinds of files, by the names that E2B has. */
export const FileType = {
  /** A regular file. */
  FILE: "file",
  /** A directory. */
  DIR: "dir",
  /** A symbolic link. */
  SYMLINK: "symlink",
} as const;

/** `file`, `dir` and `symlink` as in E2B; the others are what the protocol calls them. */
export type FileType = "file" | "dir" | "symlink" | "char_device" | "block_device" | "fifo" | "socket";

/** A file that was written. */
export interface WriteInfo {
  /** The last part of the path. */
  name: string;
  /** Its path. */
  path: string;
  /** Its kind. */
  type: FileType;
}

/** What is known of a file. */
export interface EntryInfo extends WriteInfo {
  /** Bytes. */
  size: number;
  /** Permission bits. */
  mode: number;
  /** The same as `ls -l` shows them: `rwxr-xr-x`. */
  permissions: string;
  /** Its owner's user ID in the sandbox. */
  uid: number;
  /** Its group's ID in the sandbox. */
  gid: number;
  /** When its contents were last changed. */
  modifiedTime: Date;
  /** What a symbolic link says. */
  symlinkTarget?: string;
  /** The path's bytes, if they are not UTF-8: `path` then has U+FFFD for some. */
  rawPath?: Uint8Array;
}

export function writeInfo(path: string, type: FileType = "file"): WriteInfo {
  return { name: posix.basename(path), path, type };
}

export function entryInfo(path: string, stat: Stat, target?: Text): EntryInfo {
  const { kind, size, mode, uid, gid, modified } = stat;
  const type = kind === "directory" ? "dir" : (kind as FileType);
  const modifiedTime = new Date(modified.seconds * 1000 + Math.floor(modified.nanos / 1e6));
  const info = { ...writeInfo(path, type), size, mode, permissions: permissions(mode), uid, gid, modifiedTime };
  return type === "symlink" && target !== undefined ? { ...info, symlinkTarget: textString(target) } : info;
}

/** The entry of a file below a directory. */
export function entryBelow(directory: string, path: Text, stat: Stat, target: Text): EntryInfo {
  // A guest may lie: what is listed is below the directory.
  if (textString(path).split("/").some((part) => ["", ".", ".."].includes(part))) {
    throw new ProtocolError(`\`${textString(path)}\` is no path below a directory`);
  }
  const prefix = directory.endsWith("/") ? directory : `${directory}/`;
  const info = entryInfo(`${prefix}${textString(path)}`, stat, target);
  return typeof path === "string" ? info : { ...info, rawPath: Buffer.concat([Buffer.from(prefix), textBytes(path)]) };
}

function permissions(mode: number): string {
  const bits = [...(mode & 0o777).toString(2).padStart(9, "0")];
  const letters = bits.map((bit, at) => (bit === "1" ? "rwx"[at % 3] : "-"));
  const special = (bit: number, at: number, letter: string): void => {
    if ((mode & bit) !== 0) letters[at] = letters[at] === "-" ? letter.toUpperCase() : letter;
  };
  special(0o4000, 2, "s");
  special(0o2000, 5, "s");
  special(0o1000, 8, "t");
  return letters.join("");
}
