import assert from "node:assert/strict";
import { chownSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:net";
import { homedir, tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { ABSENT, DaemonError, reach, socketPath, STRANGER } from "../src/address.ts";

const folder = mkdtempSync(join(tmpdir(), "uma-"));
after(() => rmSync(folder, { recursive: true }));

function listen(name: string, heard: (data: string) => void = () => undefined): Promise<Server> {
  const server = createServer((peer) => peer.on("error", () => undefined).on("data", (data) => heard(String(data))));
  return new Promise((resolve) => server.listen(join(folder, name), () => resolve(server)));
}

test("the setting goes before UMA_SOCK, that before the runtime folder, that before /tmp", async () => {
  const environment = { UMA_SOCK: "/b.sock", XDG_RUNTIME_DIR: folder };
  assert.equal(socketPath("/a.sock", environment), "/a.sock");
  assert.equal(socketPath("~/a.sock", environment), join(homedir(), "a.sock"));
  assert.equal(socketPath(" ", environment), "/b.sock");
  const runtime = { XDG_RUNTIME_DIR: folder };
  writeFileSync(join(folder, "uma.sock"), "no socket");
  assert.equal(socketPath("", runtime), "/tmp/uma.sock");
  rmSync(join(folder, "uma.sock"));
  const server = await listen("uma.sock");
  assert.equal(socketPath("", runtime), join(folder, "uma.sock"));
  assert.equal(socketPath("", {}), "/tmp/uma.sock");
  server.close();
});

test("without a daemon the error says so, and how to start one there", async () => {
  const path = join(folder, "nobody.sock");
  await assert.rejects(reach(path), (error: DaemonError) => {
    assert.equal(error.code, ABSENT);
    assert.equal(error.message, `no daemon at ${path} (ENOENT); start one with \`umaserve --socket ${path}\``);
    return true;
  });
});

test("another user's socket is left before the first byte", { skip: process.getuid?.() !== 0 && "needs root" }, async () => {
  const heard: string[] = [];
  const server = await listen("other.sock", (data) => heard.push(data));
  chownSync(join(folder, "other.sock"), 65534, 65534);
  await assert.rejects(reach(join(folder, "other.sock")), (error: DaemonError) => {
    assert.equal(error.code, STRANGER);
    assert.match(error.message, /another user's; nothing was sent\. Start a daemon of your own/);
    return true;
  });
  chownSync(join(folder, "other.sock"), 0, 0);
  (await reach(join(folder, "other.sock"))).destroy();
  assert.deepEqual(heard, []);
  server.close();
});
