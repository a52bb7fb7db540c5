import { call, each, messages, print, refused, task } from "./file_tools.mjs";

const model = "local";
const hello = { model, messages: messages("hello") };

const whole = await client.chat(hello);
let streamed = "";
let last;
for await (const part of await client.chat({ ...hello, stream: true })) {
  streamed += part.message.content;
  last = part;
}
const generated = await client.generate({ model, prompt: "hello" });

const tools = each((name, tool) => ({
  type: "function", function: { name, description: tool.description, parameters: tool.schema },
}));
const history = messages(task);
const called = [];
let answer;
for (;;) {
  answer = { role: "assistant", content: "", thinking: "", tool_calls: [] };
  for await (const { message } of await client.chat({
    model, messages: history, tools, think: true, stream: true,
  })) {
    answer.content += message.content;
    answer.thinking += message.thinking ?? "";
    answer.tool_calls.push(...(message.tool_calls ?? []));
  }
  history.push(answer);
  if (!answer.tool_calls.length) break;
  for (const { function: asked } of answer.tool_calls) {
    called.push([answer.thinking.trim(), asked.name]);
    const content = call(asked.name, asked.arguments);
    history.push({ role: "tool", content, tool_name: asked.name });
  }
}

const [first] = (await client.list()).models;
print({
  whole: whole.message.content,
  streamed,
  counts: [whole.eval_count, last.eval_count],
  generated: generated.response,
  called,
  agent: answer.content,
  format: (await client.show({ model: first.model })).details.format,
  running: (await client.ps()).models[0].model === first.model,
  version: typeof (await client.version()).version,
  pull: await refused(client.pull({ model: "other" })),
});
