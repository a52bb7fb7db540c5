import assert from "node:assert/strict";
import { test } from "node:test";
import { Daemon } from "../src/daemon.ts";
import { pause, serving } from "../src/figures.ts";
import { real } from "./sockets.ts";

test("the daemon is asked less and less often while it is away", () => {
  assert.deepEqual([0, 1, 2, 5, 50].map(pause), [2000, 4000, 8000, 60_000, 60_000]);
});

test("the status tells of a daemon that nobody has asked, and of one that somebody has", () => {
  const idle = { model: "m", p95_ms: null, active_sessions: 0, apps: {} };
  assert.equal(serving(idle, undefined).text, "$(pulse) idle · p95 –");
  assert.match(serving({ ...idle, model: null }, undefined).tooltip, /no model is loaded; load one/);
  const apps = { vscode: { lane: "background", lane_reason: "long", p95_ms: 12.3 } };
  const busy = { ...idle, p95_ms: 3.25, apps };
  assert.equal(serving(busy, undefined).text, "$(pulse) background · p95 12 ms");
  const lane = { lane: "interactive", reason: "asked for" };
  assert.equal(serving({ ...busy, apps: {} }, lane).text, "$(pulse) interactive · p95 3.3 ms");
  assert.match(serving(busy, lane).tooltip, /lane: interactive \(asked for\)/);
});

test("the daemon's metrics have what the status shows", async () => {
  const daemon = new Daemon(real());
  const request = { prompt: "import os", max_tokens: 8, ignore_eos: true, app: "vscode" };
  for await (const _ of daemon.generate(request));
  const { metrics } = await daemon.ask({ type: "metrics" });
  daemon.close();
  assert.match(serving(metrics!, undefined).text, /^\$\(pulse\) interactive · p95 [\d.]+ ms$/);
  assert.match(serving(metrics!, undefined).tooltip, /of VS Code, 95th percentile/);
});
