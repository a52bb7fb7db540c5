import { Agent } from "@mastra/core/agent";
import { createTool } from "@mastra/core/tools";
import { z } from "zod";
import { each, print, reset, task } from "./file_tools.mjs";

const tools = Object.fromEntries(
  each((name, { description, schema, run }) => [
    name,
    createTool({
      id: name,
      description,
      inputSchema: z.object(
        Object.fromEntries(Object.keys(schema.properties).map((key) => [key, z.string()])),
      ),
      outputSchema: z.object({ text: z.string() }),
      execute: async (input) => ({ text: run(input) }),
    }),
  ]),
);
const agent = new Agent({
  id: "painter", name: "painter", instructions: "You paint boxes.", model, tools,
});
const schema = z.object({ colour: z.string(), painted: z.boolean() });

const whole = await agent.generate(task, { structuredOutput: { schema }, maxSteps: 5 });
reset();
const stream = await agent.stream(task, { structuredOutput: { schema }, maxSteps: 5 });
for await (const _ of stream.textStream);
print({ outputs: [whole.object, await stream.object] });
