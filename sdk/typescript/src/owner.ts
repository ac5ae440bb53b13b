/** Connections to the owner of a sandbox. A request that may go on has one, with which it ends. */

import { closeSync, constants, openSync } from "node:fs";
import { connect, type Socket } from "node:net";
import { join } from "node:path";

import { SandboxNotRunningError } from "./errors.js";
import type { Message } from "./protocol/call.js";
import { Connection } from "./protocol/connection.js";

/** Bytes of a socket's address, with the NUL at its end. */
const MOST = 108;

/** What a process needs to reach a sandbox's owner. */
export interface Owner {
  /** The sandbox's directory. */
  directory: string;
  /** The sandbox's name, for errors. */
  name: string;
}

/** A connection, which keeps this process alive while it is referenced. */
export interface OwnerConnection {
  connection: Connection;
  socket: Socket;
}

/** Connects to a sandbox's owner. `busy` is called when the first request begins, and when none is left. */
export async function connectOwner({ directory, name }: Owner, busy?: (made: OwnerConnection, isBusy: boolean) => void): Promise<OwnerConnection> {
  let path = join(directory, "control");
  let opened: number | undefined;
  try {
    if (Buffer.byteLength(path) >= MOST) {
      opened = openSync(directory, constants.O_RDONLY | constants.O_DIRECTORY);
      path = `/proc/self/fd/${opened}/control`;
    }
    const socket = await new Promise<Socket>((resolve, reject) => {
      const socket = connect(path);
      socket.once("error", reject);
      socket.once("connect", () => {
        socket.off("error", reject);
        resolve(socket);
      });
    });
    const transport = { from: socket, to: socket, name: `sandbox ${name}` };
    const made: OwnerConnection = { connection: new Connection({ ...transport, busy: (isBusy) => busy?.(made, isBusy) }), socket };
    return made;
  } catch (cause) {
    throw new SandboxNotRunningError(`sandbox ${name} does not run`, { kind: "not_running", cause });
  } finally {
    if (opened !== undefined) closeSync(opened);
  }
}

/** Makes a request that has one answer. */
export async function askOwner(owner: Owner, request: object, type: string): Promise<Message> {
  const { connection } = await connectOwner(owner);
  try {
    return await connection.ask(request, type);
  } finally {
    connection.close();
  }
}
