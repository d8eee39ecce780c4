// OpenAI's client for Node.js: `openai_node.mjs chat|tools|responses`.

import OpenAI from "openai";

const model = process.env.TORTURE_MODEL;
const messages = [{ role: "user", content: "hi" }];
const properties = { city: { type: "string" }, n: { type: "integer" } };
const tools = [
  { type: "function", function: { name: "report", parameters: { type: "object", properties } } },
];
const client = new OpenAI({ maxRetries: 0 });
const print = (text) => process.stdout.write(text ?? "");

const calls = {
  async chat() {
    const stream = await client.chat.completions.create({ model, messages, stream: true });
    for await (const chunk of stream) print(chunk.choices[0]?.delta?.content);
  },

  async tools() {
    const stream = await client.chat.completions.create({ model, messages, tools, stream: true });
    for await (const chunk of stream) {
      for (const call of chunk.choices[0]?.delta?.tool_calls ?? []) print(call.function?.arguments);
    }
  },

  async responses() {
    const stream = await client.responses.create({ model, input: "hi", stream: true });
    for await (const event of stream) {
      if (event.type === "response.output_text.delta") print(event.delta);
    }
  },
};

await calls[process.argv[2]]();
