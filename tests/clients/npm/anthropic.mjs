import { each, messages, print, refused, task } from "./file_tools.mjs";

const asked = { model: "local", max_tokens: 4096 };
const hello = { ...asked, messages: messages("hello") };

const whole = await client.messages.create(hello);
const stream = client.messages.stream(hello);
let streamed = "";
stream.on("text", (text) => (streamed += text));
const final = await stream.finalMessage();

const tools = each((name, tool) => ({
  name, description: tool.description, input_schema: tool.schema, run: tool.run,
  parse: (input) => input,
}));
const kinds = [];
let agent;
const runner = client.beta.messages.toolRunner({
  ...asked, messages: messages(task), tools, stream: true,
});
for await (const turn of runner) {
  agent = await turn.finalMessage();
  kinds.push(agent.content.map((block) => block.type));
}

print({
  whole: whole.content[0].text,
  streamed,
  tokens: [whole.usage, final.usage].map((u) => [u.input_tokens, u.output_tokens]),
  counted: (await client.messages.countTokens({ model: "local", messages: hello.messages }))
    .input_tokens,
  kinds,
  agent: agent.content.at(-1).text,
  wrong: await refused(client.messages.create({ ...hello, temperature: 100 })),
  long: await refused(
    client.messages.create({ ...asked, messages: messages("long ".repeat(100000)) }),
  ),
});
