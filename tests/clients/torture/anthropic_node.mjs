// Anthropic's client for Node.js: a message.

import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ maxRetries: 0 });
const stream = client.messages
  .stream({
    model: process.env.TORTURE_MODEL,
    max_tokens: 1024,
    messages: [{ role: "user", content: "hi" }],
  })
  .on("text", (text) => process.stdout.write(text));
await stream.finalMessage();
