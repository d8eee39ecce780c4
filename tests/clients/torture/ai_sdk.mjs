// The AI SDK: `ai_sdk.mjs chat|responses|messages`. It throws no errors of a stream; its
// documentation names `onError` as the place to notice them.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { streamText } from "ai";

// Otherwise it prints warnings, and a hint about them to stdout.
globalThis.AI_SDK_LOG_WARNINGS = false;
const name = process.env.TORTURE_MODEL;
const openai = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL });
const anthropic = createAnthropic({ baseURL: `${process.env.ANTHROPIC_BASE_URL}/v1` });
const models = {
  chat: () => openai.chat(name),
  responses: () => openai.responses(name),
  messages: () => anthropic(name),
};

const { textStream } = streamText({
  model: models[process.argv[2]](),
  prompt: "hi",
  maxRetries: 0,
  onError({ error }) {
    console.error(error);
    process.exitCode = 1;
  },
});
for await (const text of textStream) process.stdout.write(text);
