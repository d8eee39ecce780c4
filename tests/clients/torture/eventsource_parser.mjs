// The parser of event streams below most clients for Node.js: a chat with fetch. The parser knows
// nothing about chats, so this program checks that `[DONE]` has arrived.

import { EventSourceParserStream } from "eventsource-parser/stream";

const response = await fetch(`${process.env.OPENAI_BASE_URL}/chat/completions`, {
  method: "POST",
  headers: {
    Authorization: `Bearer ${process.env.OPENAI_API_KEY}`,
    "Content-Type": "application/json",
  },
  body: JSON.stringify({
    model: process.env.TORTURE_MODEL,
    messages: [{ role: "user", content: "hi" }],
    stream: true,
  }),
});
if (!response.ok) throw new Error(await response.text());

const events = response.body
  .pipeThrough(new TextDecoderStream())
  .pipeThrough(new EventSourceParserStream());
let isDone = false;
for await (const { data } of events) {
  isDone = data === "[DONE]";
  if (isDone) break;
  for (const { delta } of JSON.parse(data).choices) process.stdout.write(delta.content ?? "");
}
if (!isDone) throw new Error("the stream has ended without [DONE]");
