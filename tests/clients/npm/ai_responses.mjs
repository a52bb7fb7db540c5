import { generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai-6";
import { door, each, print, reset, task } from "./file_tools.mjs";

const tools = Object.fromEntries(
  each((name, { description, schema, run }) => [
    name, tool({ description, inputSchema: jsonSchema(schema), execute: async (o) => run(o) }),
  ]),
);
const output = Output.object({ schema: jsonSchema(door) });
const asked = { prompt: task, tools, output, stopWhen: stepCountIs(5) };

const told = {};
for (const [name, model] of Object.entries({ responses: uma("local"), chat: uma.chat("local") })) {
  reset();
  const whole = await generateText({ model, ...asked });
  reset();
  const stream = streamText({ model, ...asked });
  await stream.consumeStream();
  told[name] = {
    outputs: [whole.output, await stream.output],
    called: whole.steps.flatMap((step) => step.toolCalls.map((call) => call.toolName)),
    reasons: (await stream.steps).map((step) => step.finishReason),
  };
}
print(told);
