import { generateText, isStepCount, jsonSchema, streamText, tool } from "ai";
import { each, print, refused, reset, task } from "./file_tools.mjs";

const tools = () =>
  Object.fromEntries(
    each((name, { description, schema, run }) => [
      name, tool({ description, inputSchema: jsonSchema(schema), execute: async (o) => run(o) }),
    ]),
  );

const whole = await generateText({ model, prompt: "hello" });
const generated = await generateText({
  model, prompt: task, tools: tools(), stopWhen: isStepCount(5),
});

reset();
const stream = streamText({ model, prompt: task, tools: tools(), stopWhen: isStepCount(5) });
let streamed = "";
for await (const text of stream.textStream) streamed += text;
const steps = await stream.steps;

print({
  whole: whole.text,
  tokens: whole.usage.outputTokens,
  generated: generated.text,
  called: generated.steps.flatMap((step) => step.toolCalls.map((call) => call.toolName)),
  thought: generated.steps.map((step) => step.reasoningText?.trim()),
  streamed: streamed.trim(),
  reasons: steps.map((step) => step.finishReason),
  usage: steps.every((step) => step.usage.inputTokens > step.usage.outputTokens),
  wrong: await refused(generateText({ model, prompt: "hello", temperature: 100, maxRetries: 0 })),
});
