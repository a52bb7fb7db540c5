import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { setTimeout } from "node:timers/promises";
import { ABSENT, DaemonError, GONE } from "../src/address.ts";
import { Daemon, type DaemonEvent } from "../src/daemon.ts";
import { real } from "./sockets.ts";

interface Ended { app: string; reason: string; completion_tokens: number }

let daemon: Daemon;
before(() => (daemon = new Daemon(real())));
after(() => daemon.close());

async function ended(app: string): Promise<Ended | undefined> {
  for (let tries = 0; tries < 200; tries += 1) {
    const { info } = await daemon.ask({ type: "info" });
    const found = (info as unknown as { recent: Ended[] }).recent.filter((each) => each.app === app);
    if (found.length) return found.at(-1);
    await setTimeout(20);
  }
  return undefined;
}

const long = (app: string) => ({ prompt: "def f(", max_tokens: 1500, ignore_eos: true, app });

test("text comes in tokens, and eos ends it", async () => {
  const events: DaemonEvent[] = [];
  const request = { prompt: "import os", max_tokens: 4, temperature: 0, ignore_eos: true, begin: true };
  for await (const event of daemon.generate({ ...request, priority: "background" })) events.push(event);
  assert.deepEqual(events.map((each) => each.event), ["begin", ...Array(4).fill("token"), "eos"]);
  assert.equal(events[0]!.lane, "background");
  assert.equal(events.at(-1)!.reason, "length");
});

test("requests and questions run side by side on one connection", async () => {
  const read = async (prompt: string) => {
    let text = "";
    const request = { prompt, max_tokens: 12, temperature: 0, ignore_eos: true };
    for await (const event of daemon.generate(request)) text += event.text ?? "";
    return text;
  };
  const prompts = ["import os", "def f(", "class A"];
  const alone: string[] = [];
  for (const prompt of prompts) alone.push(await read(prompt));
  const [tokens, ...together] = await Promise.all([
    daemon.ask({ type: "tokenize", text: "grün" }), ...prompts.map(read),
  ]);
  assert.deepEqual(together, alone);
  const back = await daemon.ask({ type: "detokenize", tokens: tokens.tokens });
  assert.equal(back.text, "grün");
});

test("an abort ends the wait at once, and the request on the daemon", async () => {
  const controller = new AbortController();
  const read = async () => {
    for await (const event of daemon.generate(long(`test-abort-${process.pid}`), controller.signal)) {
      if (event.event === "token") controller.abort();
    }
  };
  await assert.rejects(read(), { name: "AbortError" });
  const found = await ended(`test-abort-${process.pid}`);
  assert.equal(found?.reason, "cancel");
  assert.ok(found.completion_tokens < 1500);
  assert.equal((await daemon.ask({ type: "ping" })).event, "pong");
});

test("leaving early cancels too, and an abort before the start asks nothing", async () => {
  for await (const event of daemon.generate(long(`test-leave-${process.pid}`))) {
    if (event.event === "token") break;
  }
  assert.equal((await ended(`test-leave-${process.pid}`))?.reason, "cancel");
  const asked = daemon.generate(long("test-never"), AbortSignal.abort()).next();
  await assert.rejects(asked, { name: "AbortError" });
  await daemon.ask({ type: "ping" }); // what was sent before has been read
  const { info } = await daemon.ask({ type: "info" });
  assert.ok(!JSON.stringify(info).includes("test-never"));
});

test("a refusal has the daemon's code, and the connection goes on", async () => {
  await assert.rejects(daemon.generate({ prompt: "" }).next(), (error: DaemonError) => {
    assert.equal(error.code, "E_PROTO_003");
    assert.match(error.message, /prompt/);
    return true;
  });
  assert.equal((await daemon.ask({ type: "ping" })).event, "pong");
});

test("a daemon that goes ends what waits; the next question connects anew", async () => {
  const folder = mkdtempSync(join(tmpdir(), "uma-"));
  const path = join(folder, "uma.sock");
  const listen = () => {
    const server = createServer((peer) => peer.on("error", () => undefined).once("data", () => peer.destroy()));
    return new Promise<typeof server>((resolve) => server.listen(path, () => resolve(server)));
  };
  let server = await listen();
  const other = new Daemon(path);
  await assert.rejects(other.ask({ type: "ping" }), { code: GONE });
  await new Promise((resolve) => server.close(resolve));
  await assert.rejects(other.ask({ type: "ping" }), { code: ABSENT });
  server = await listen();
  await assert.rejects(other.ask({ type: "ping" }), { code: GONE });
  server.close();
  rmSync(folder, { recursive: true });
});
