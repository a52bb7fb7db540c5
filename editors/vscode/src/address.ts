// Where the daemon's socket is, and that it is this user's.

import { connect, type Socket } from "node:net";
import { statSync } from "node:fs";
import { homedir } from "node:os";
import { isAbsolute, join } from "node:path";

export const DEFAULT_SOCKET = "/tmp/uma.sock";
const RUNTIME_NAME = "uma.sock";

/** No daemon listens. All other codes are the daemon's own, or one of the next two. */
export const ABSENT = "absent";
/** Somebody else's socket; nothing was sent. */
export const STRANGER = "stranger";
/** The connection ended before the answer was complete. */
export const GONE = "gone";

/** What went wrong, and what to do; `code` is for programs. */
export class DaemonError extends Error {
  readonly code: string;

  constructor(code: string, message: string) {
    super(message);
    this.code = code;
  }
}

/** `named`, else UMA_SOCK, else $XDG_RUNTIME_DIR/uma.sock if there is such a socket, else /tmp/uma.sock. */
export function socketPath(named: string, environment: NodeJS.ProcessEnv = process.env): string {
  const path = named.trim() || environment["UMA_SOCK"];
  if (path) return path.replace(/^~(?=\/|$)/, homedir());
  const folder = environment["XDG_RUNTIME_DIR"] ?? "";
  const own = join(folder, RUNTIME_NAME);
  return isAbsolute(folder) && look(own)?.isSocket() ? own : DEFAULT_SOCKET;
}

/** A connection to this user's daemon. Rejects with DaemonError. */
export function reach(path: string): Promise<Socket> {
  const before = look(path);
  return new Promise((resolve, reject) => {
    const socket = connect(path);
    socket.once("error", (error: NodeJS.ErrnoException) => reject(unreachable(path, error)));
    socket.once("connect", () => {
      socket.removeAllListeners("error");
      // Node cannot ask whose process listens. So the file is looked at before and after: nobody
      // else can remove this user's socket from a folder where this user's sockets are safe.
      const after = look(path);
      if (isOwn(before?.uid) && before?.ino === after?.ino && isOwn(after?.uid)) return resolve(socket);
      socket.destroy();
      const whose = after && !isOwn(after.uid) ? "another user's" : "not the socket that it was";
      reject(new DaemonError(STRANGER, `${path} is ${whose}; nothing was sent. ${ownDaemon(path)}`));
    });
  });
}

function look(path: string) {
  return statSync(path, { throwIfNoEntry: false });
}

function isOwn(uid: number | undefined): boolean {
  return uid === process.getuid?.();
}

function unreachable(path: string, error: NodeJS.ErrnoException): DaemonError {
  if (error.code === "EACCES" || error.code === "EPERM") {
    return new DaemonError(STRANGER, `${path} is not open to you. ${ownDaemon(path)}`);
  }
  const option = path === DEFAULT_SOCKET ? "" : ` --socket ${path}`;
  return new DaemonError(
    ABSENT,
    `no daemon at ${path} (${error.code ?? error.message}); start one with \`umaserve${option}\``,
  );
}

function ownDaemon(path: string): string {
  const other = path === DEFAULT_SOCKET ? "another path" : `another path than ${path}`;
  return `Start a daemon of your own with \`umaserve --socket\` and ${other}, and set umaserve.socket to it`;
}
