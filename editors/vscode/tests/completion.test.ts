import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { around, complete } from "../src/completion.ts";
import { Daemon, type DaemonEvent } from "../src/daemon.ts";
import { real, scripted } from "./sockets.ts";

const asking = { session: "window", priority: "interactive", maxTokens: 16 };
const never = new AbortController().signal;
let daemon: Daemon;
before(() => (daemon = new Daemon(real())));
after(() => daemon.close());

test("what the model sees begins at a line, and stays where it is while somebody types", () => {
  const text = "0123456789abcde\n".repeat(2000);
  assert.deepEqual(around("ab", 1), { before: "a", after: "b" });
  const { before: front, after: behind } = around(text, 20_005);
  assert.ok(text.startsWith(front.slice(0, 16), 16 * Math.floor((20_005 - front.length) / 16)));
  assert.equal((20_005 - front.length) % 16, 0);
  assert.ok(front.length <= 8192 && behind.length === 2048);
  const start = (cursor: number) => cursor - around(text, cursor).before.length;
  assert.equal(new Set([16_400, 17_000, 19_000].map(start)).size, 1);
  assert.ok(start(21_000) > start(19_000));
  const lineless = around("x".repeat(20_000), 20_000).before.length;
  assert.ok(lineless > 4000 && lineless <= 8192);
});

test("the model fills the gap by its own tokens, for this window, in its lane", async () => {
  let begun: DaemonEvent | undefined;
  const place = { before: "def add(a, b):\n    return", after: "" };
  const text = await complete(daemon, place, asking, never, (event) => (begun = event));
  assert.ok(text.trim() && !text.includes("\n\n"));
  assert.equal(begun?.lane, "interactive");
  // the prompt has three tokens more than the texts
  const { tokens } = await daemon.ask({ type: "tokenize", text: place.before, parse_special: false });
  const { usage } = begun as unknown as { usage: { prompt_tokens: number } };
  assert.equal(usage.prompt_tokens, tokens!.length + 3);
});

test("one line alone where text follows on the line", async () => {
  const place = { before: "def fibonacci(n):\n    ", after: "" };
  const several = await complete(daemon, place, { ...asking, maxTokens: 64 }, never);
  assert.match(several, /\n/);
  const one = await complete(daemon, { ...place, after: " # the end\n" }, { ...asking, maxTokens: 64 }, never);
  assert.doesNotMatch(one, /\n/);
});

test("texts longer than the context are cut, and a place without text asks nothing", async () => {
  const words = "alpha beta gamma delta ".repeat(20_000);
  await complete(daemon, { before: words.slice(0, 60_000), after: words.slice(0, 60_000) }, asking, never);
  const much = { ...asking, maxTokens: 1_000_000 };
  const behind = " # the end\n"; // so that a line is all
  assert.doesNotMatch(await complete(daemon, { before: "a = ", after: behind }, much, never), /\n/);
  const other = new Daemon(scripted());
  assert.equal(await complete(other, { before: "", after: "x" }, asking, never), "");
  other.close();
});

test("a model without tokens for a gap goes on with the text", async () => {
  const other = new Daemon(scripted());
  const { info } = await other.ask({ type: "info" });
  assert.deepEqual(info?.model?.gap, {});
  assert.equal(await complete(other, { before: "what follows:", after: "" }, asking, never), "this follows");
  other.close();
});
