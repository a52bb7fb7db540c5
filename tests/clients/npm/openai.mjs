import { call, each, messages, print, refused, reset, task } from "./file_tools.mjs";

const model = "local";
const chat = client.chat.completions;
const hello = { model, messages: messages("hello") };

const whole = await chat.create(hello);
let streamed = "";
let usage;
for await (const chunk of await chat.create({
  ...hello, stream: true, stream_options: { include_usage: true },
})) {
  streamed += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}

const functions = each((name, tool) => ({
  type: "function",
  function: {
    name, description: tool.description, parameters: tool.schema, parse: JSON.parse,
    function: tool.run,
  },
}));
const runner = chat.runTools({ model, messages: messages(task), tools: functions, stream: true });
const agent = await runner.finalContent();

reset();
const flat = each((name, tool) => ({
  type: "function", name, description: tool.description, parameters: tool.schema, strict: false,
}));
let response = await client.responses.create({ model, input: task, tools: flat });
const called = [];
while (response.output.some((item) => item.type === "function_call")) {
  const outputs = [];
  for (const item of response.output.filter((item) => item.type === "function_call")) {
    called.push(item.name);
    const output = call(item.name, JSON.parse(item.arguments));
    outputs.push({ type: "function_call_output", call_id: item.call_id, output });
  }
  const stream = client.responses.stream({
    model, input: outputs, previous_response_id: response.id, tools: flat,
  });
  response = await stream.finalResponse();
}

const list = await client.models.list();
print({
  whole: whole.choices[0].message.content,
  streamed,
  tokens: [whole.usage.total_tokens, usage.total_tokens],
  agent,
  called,
  responded: response.output_text,
  model: (await client.models.retrieve(list.data[0].id)).id === list.data[0].id,
  wrong: await refused(chat.create({ ...hello, temperature: 100 })),
  long: await refused(chat.create({ model, messages: messages("long ".repeat(100000)) })),
  unknown: await refused(client.models.retrieve("other")),
});
