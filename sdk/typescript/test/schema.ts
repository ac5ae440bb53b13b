/** The schema of the protocol, of `mica-manual --protocol`: messages are valid against it by another hand, ajv. */

import { readFile } from "node:fs/promises";

import { Ajv2020 } from "ajv/dist/2020.js";

import { ReplyDecoder } from "../src/files/replies.js";
import { Call, type Message } from "../src/protocol/call.js";
import { Connection } from "../src/protocol/connection.js";

export interface Schema {
  description?: string;
  properties?: Record<string, Schema>;
  const?: unknown;
  oneOf?: Schema[];
}

interface Root {
  $defs: Record<string, Schema>;
}

export const schema = JSON.parse(await readFile(process.env["MICABOX_SCHEMA"] ?? "protocol.schema.json", "utf8")) as Root;

const ajv = new Ajv2020({ allowUnionTypes: true }).addSchema(schema, "protocol");

/** What is wrong with a message of one of these kinds, of which it has to be one; undefined for nothing. */
export function wrong(message: unknown, ...kinds: string[]): string | undefined {
  const whys = kinds.map((kind) => {
    const validate = ajv.getSchema(`protocol#/$defs/${kind}`);
    if (validate === undefined) throw new Error(`no ${kind}`);
    return validate(message) ? undefined : ajv.errorsText(validate.errors);
  });
  return whys.includes(undefined) ? undefined : `${JSON.stringify(message)}: ${whys.join("; or ")}`;
}

function check(message: unknown, ...kinds: string[]): void {
  const why = wrong(message, ...kinds);
  if (why !== undefined) throw new Error(`not of the schema: ${why}`);
}

/** From now on, each message of this process is checked; what is not valid has to be refused by the other side. */
export function checkAll(): void {
  /** Who is asked: `mica serve`, or an owner. */
  const asked = new WeakMap<Call, "Serve" | "Owner">();
  const refused = new WeakSet<Call>();
  const { call } = Connection.prototype;
  Connection.prototype.call = function (request: { type?: string; argv?: unknown[]; sandbox?: unknown }) {
    const made = call.call(this, request);
    const { type = "", argv: [program, operation] = [], sandbox } = request;
    const who = ["create", "command"].includes(type) || sandbox !== undefined ? "Serve" : "Owner";
    asked.set(made, who);
    const isRight =
      wrong(request, `${who}Request`) === undefined &&
      (program !== "\0files" || wrong(JSON.parse(String(operation)), "FileRequest") === undefined);
    if (!isRight) refused.add(made);
    return made;
  };
  const { send, received } = Call.prototype;
  Call.prototype.send = function (message: object) {
    check(message, `${asked.get(this)}Request`);
    send.call(this, message);
  };
  Call.prototype.received = function (message: Message) {
    const isOwners = asked.get(this) === "Owner";
    check(message, ...(isOwners ? ["OwnerReply"] : ["ServeReply", "PullReport"]));
    if (refused.has(this) && message.type !== "failed") throw new Error(`answered, and not of the schema: ${JSON.stringify(message)}`);
    received.call(this, message);
  };
  const { push } = ReplyDecoder.prototype;
  ReplyDecoder.prototype.push = function (bytes: Uint8Array) {
    const replies = push.call(this, bytes);
    for (const reply of replies) check(reply, "FileReply");
    return replies;
  };
}
