// Ollama's client for Node.js: a chat.

import { Ollama } from "ollama";

const client = new Ollama({ host: process.env.OLLAMA_HOST });
const response = await client.chat({
  model: process.env.TORTURE_MODEL,
  messages: [{ role: "user", content: "hi" }],
  stream: true,
});
for await (const part of response) {
  process.stdout.write(part.message.content);
}
