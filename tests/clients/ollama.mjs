// Ollama's client for Node.js as a program.

import { Ollama } from "ollama";

const given = JSON.parse(process.argv[2]);
const { model } = given;
const client = new Ollama({
  host: given.base_url,
  headers: { Authorization: `Bearer ${given.key}` },
});
const options = { temperature: 0 };
const turns = (content) => [{ role: "user", content }];
const tell = (step, seen) =>
  process.stdout.write(JSON.stringify({ scenario: "node", step, ...seen }) + "\n");

const whole = await client.chat({ model, messages: turns("hello"), options });
tell("chat", { text: whole.message.content, reason: whole.done_reason });

let text = "";
let done = 0;
for await (const line of await client.chat({ model, messages: turns("hello"), stream: true })) {
  text += line.message.content;
  done += line.done ? 1 : 0;
}
tell("stream", { text, done });

const generated = await client.generate({ model, prompt: "hello", system: "Be brief." });
tell("generate", { text: generated.response, tokens: generated.eval_count });

const thought = await client.chat({ model, messages: turns("think"), think: true });
tell("think", { text: thought.message.content, thinking: thought.message.thinking });

const question = turns("What is the weather in Oslo?");
const tools = [given.weather];
const called = await client.chat({ model, messages: question, tools });
const [call] = called.message.tool_calls;
tell("call", { name: call.function.name, arguments: call.function.arguments });
const result = { role: "tool", content: "sunny", tool_name: call.function.name };
const answered = await client.chat({ model, messages: [...question, called.message, result] });
tell("result", { text: answered.message.content });

const { embeddings } = await client.embed({ model, input: ["a", "b"] });
tell("embed", { count: embeddings.length, size: embeddings[0].length });

const listed = await client.list();
const running = await client.ps();
const shown = await client.show({ model });
tell("models", {
  names: listed.models.map((each) => each.model),
  running: running.models.map((each) => each.model),
  can: shown.capabilities,
});

for (const [step, fields] of Object.entries({
  404: { model: "x" },
  400: { options: { temperature: 9 } },
})) {
  try {
    await client.chat({ model, messages: turns("hello"), ...fields });
  } catch (error) {
    tell(step, { status: error.status_code, text: error.error });
  }
}
