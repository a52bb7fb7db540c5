import assert from "node:assert/strict";
import { test } from "node:test";
import { encodeFrame, FrameReader } from "../src/frames.ts";

test("a frame has the bytes that docs/PROTOCOL.md shows", () => {
  const frame = encodeFrame({ id: "a", prompt: "Hi" });
  assert.equal(frame.toString("hex", 0, 8), "180000007b226964");
  assert.equal(frame.length, 4 + 24);
});

test("frames are read whole, cut at any byte and several at once", () => {
  const sent = [{ text: "grün" }, {}, { text: "x".repeat(70_000) }];
  const bytes = Buffer.concat(sent.map(encodeFrame));
  assert.deepEqual(new FrameReader().push(bytes), sent);
  for (const step of [1, 3, 5, 65_536]) {
    const reader = new FrameReader();
    const found: unknown[] = [];
    for (let at = 0; at < bytes.length; at += step) found.push(...reader.push(bytes.subarray(at, at + step)));
    assert.deepEqual(found, sent, `pieces of ${step}`);
  }
});

test("what is not JSON is an error", () => {
  assert.throws(() => new FrameReader().push(Buffer.from([1, 0, 0, 0, 0x7b])), SyntaxError);
});
