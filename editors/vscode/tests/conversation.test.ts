import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { answer, messagesOf, samplingOf, textOf, toolsOf } from "../src/conversation.ts";
import { Daemon, type DaemonEvent } from "../src/daemon.ts";
import { real, scripted } from "./sockets.ts";

const text = (value: string) => ({ value });
const USER = 1;
const ASSISTANT = 2;
const SYSTEM = 3;
const never = new AbortController().signal;
const TOOL = {
  name: "read_file", description: "Reads a file",
  inputSchema: { type: "object", properties: { path: { type: "string" } }, required: ["path"] },
};

let daemon: Daemon;
let told: Daemon;
before(() => ((daemon = new Daemon(real())), (told = new Daemon(scripted()))));
after(() => (daemon.close(), told.close()));

interface Heard { text: string; calls: [string, string, object][]; begun: DaemonEvent[] }

async function heard(from: Daemon, request: object, signal = never): Promise<Heard> {
  const found: Heard = { text: "", calls: [], begun: [] };
  await answer(from, request, signal, {
    begun: (event) => found.begun.push(event),
    text: (part) => (found.text += part),
    call: (...call) => found.calls.push(call),
  });
  return found;
}

test("calls and results of tools become what the daemon reads", () => {
  const conversation = [
    { role: SYSTEM, content: [text("Be brief.")] },
    { role: USER, content: [text("What is "), text("in it?")] },
    { role: ASSISTANT, content: [text("I look."), { callId: "c", name: "read_file", input: { path: "a" } }] },
    { role: USER, content: [{ callId: "c", content: [text("red")] }, text("Well?")] },
    { role: ASSISTANT, content: [] },
  ];
  const call = { id: "c", type: "function", function: { name: "read_file", arguments: '{"path":"a"}' } };
  assert.deepEqual(messagesOf(conversation), [
    { role: "system", content: "Be brief." },
    { role: "user", content: "What is in it?" },
    { role: "assistant", content: "I look.", tool_calls: [call] },
    { role: "tool", tool_call_id: "c", content: "red" },
    { role: "user", content: "Well?" },
    { role: "assistant", content: null },
  ]);
});

test("data is told as text where it is text, and a picture is refused", () => {
  const data = (mimeType: string, value: string) => ({ mimeType, data: Buffer.from(value) });
  assert.equal(textOf([data("application/json", "[1]"), data("text/x-c", "x"), data("x-marks", "y"), 3, null]), "[1]x");
  assert.equal(textOf([{ value: { a: 1 } }]), '{"a":1}');
  assert.throws(() => textOf([data("image/png", "x")]), /text alone; take the attachment \(image\/png\) out/);
});

test("tools and known options of an answer pass, others do not", () => {
  assert.deepEqual(toolsOf([], true), {});
  const fields = toolsOf([{ name: "f", description: "d" }], true) as { tools: object[]; tool_choice: string };
  assert.equal(fields.tool_choice, "required");
  const parameters = { type: "object", properties: {} };
  assert.deepEqual(fields.tools, [{ type: "function", function: { name: "f", description: "d", parameters } }]);
  assert.deepEqual(samplingOf({ temperature: 0, app: "other" }), { temperature: 0 });
  assert.deepEqual(samplingOf(undefined), {});
});

test("the bundled model answers a conversation", async () => {
  const messages = messagesOf([{ role: USER, content: [text("What does os.path.join do?")] }]);
  const found = await heard(daemon, { messages, temperature: 0, max_tokens: 24, app: "test-chat" });
  assert.ok(found.text.length > 10);
  assert.equal(found.begun.length, 1);
});

test("a call of a tool comes whole, and thoughts do not come", async () => {
  const messages = messagesOf([{ role: USER, content: [text("Read the note.")] }]);
  const first = await heard(told, { messages, ...toolsOf([TOOL], false) });
  assert.equal(first.text.trim(), "I look.");
  assert.deepEqual(first.calls.map(([, name, input]) => [name, input]), [["read_file", { path: "note.txt" }]]);
  const [[id, name, input]] = first.calls as [[string, string, object]];
  assert.ok(id);
  const next = messagesOf([
    { role: USER, content: [text("Read the note.")] },
    { role: ASSISTANT, content: [{ callId: id, name, input }] },
    { role: USER, content: [{ callId: id, content: [text("The door is green.")] }] },
  ]);
  assert.equal((await heard(told, { messages: next, ...toolsOf([TOOL], false) })).text, "It is green.");
});

test("thoughts do not come without tools either", async () => {
  const messages = messagesOf([{ role: USER, content: [text("What is 6 times 7?")] }]);
  const found = await heard(told, { messages });
  assert.deepEqual([found.text, found.begun[0]?.deltas], ["42.", true]);
});

// Our models write each call in one piece.
const saying = (...calls: object[]) => {
  async function* generate() {
    for (const call of calls) yield { event: "delta", tool_calls: [call] };
  }
  return { generate } as unknown as Daemon;
};

test("calls that come in pieces and side by side are whole, and half a call is an error", async () => {
  const found = await heard(saying(
    { index: 0, id: "a", name: "f", arguments: '{"x"' }, { index: 1, id: "b", name: "g" },
    { index: 0, arguments: ":1}" },
  ), {});
  assert.deepEqual(found.calls, [["a", "f", { x: 1 }], ["b", "g", {}]]);
  const half = heard(saying({ index: 0, id: "a", name: "f", arguments: "{" }), {});
  await assert.rejects(half, /the model's call of f is no JSON; ask again/);
});
