// The clients of agents for Node.js as one program: each answers, streams and calls a function.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { Agent, OpenAIProvider, Runner, setTracingDisabled, tool as agentTool } from "@openai/agents";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const given = JSON.parse(process.argv[2]);
const { model } = given;
const baseURL = `${given.url}/v1`;
const print = (client, scenario, seen) => process.stdout.write(JSON.stringify({ client, scenario, ...seen }) + "\n");

const QUESTION = "What is the weather in Oslo?";
const description = "The weather of a city.";
const parameters = z.object({ city: z.string() });

async function openai() {
  const client = new OpenAI({ baseURL, apiKey: given.key, maxRetries: 0 });
  const whole = await client.responses.create({ model, input: "hello" });
  print("openai", "whole", { text: whole.output_text, output: whole.usage.output_tokens });
  const kinds = [];
  let text = "";
  for await (const event of await client.responses.create({ model, input: "hello", stream: true })) {
    kinds.push(event.type);
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  print("openai", "stream", { text, last: kinds.at(-1) });

  const tools = [{ type: "function", name: "get_weather", description, parameters: z.toJSONSchema(parameters), strict: true }];
  const first = await client.responses.create({ model, input: QUESTION, tools });
  const call = first.output.find(({ type }) => type === "function_call");
  const output = { type: "function_call_output", call_id: call.call_id, output: "sunny" };
  const second = await client.responses.create({ model, previous_response_id: first.id, input: [output], tools });
  print("openai", "tool", { text: second.output_text, called: JSON.parse(call.arguments) });

  const queued = await client.responses.create({ model, input: "hello", background: true });
  const events = [];
  for await (const event of await client.responses.retrieve(queued.id, { stream: true, starting_after: 1 })) events.push(event);
  const numbers = events.map(({ sequence_number }) => sequence_number);
  print("openai", "background", { status: queued.status, text: events.at(-1).response.output_text ?? textOf(events.at(-1).response), first: numbers[0] });
}

const textOf = ({ output }) => output.flatMap(({ content }) => content ?? []).map((part) => part.text).join("");

async function aiSdk(name, languageModel) {
  const whole = await generateText({ model: languageModel, prompt: "hello", maxRetries: 0 });
  print(name, "whole", { text: whole.text, output: whole.usage.outputTokens });
  const messages = [{ role: "user", content: "hello" }, ...whole.response.messages, { role: "user", content: "what did you say?" }];
  const turns = await generateText({ model: languageModel, messages, maxRetries: 0 });
  print(name, "turns", { text: turns.text });
  const stream = streamText({ model: languageModel, prompt: "hello", maxRetries: 0 });
  const parts = [];
  for await (const part of stream.textStream) parts.push(part);
  print(name, "stream", { text: parts.join(""), last: await stream.finishReason });

  const called = [];
  const tools = {
    get_weather: tool({
      description,
      inputSchema: parameters,
      execute: async (input) => {
        called.push(input);
        return "sunny";
      },
    }),
  };
  const answer = await generateText({ model: languageModel, prompt: QUESTION, tools, stopWhen: stepCountIs(3), maxRetries: 0 });
  print(name, "tool", { text: answer.text, called: called[0] });
  const { object } = await generateObject({ model: languageModel, prompt: "a city as JSON", schema: z.object({ name: z.string(), site: z.url() }), maxRetries: 0 });
  print(name, "object", { object });
}

async function openaiAgents() {
  setTracingDisabled(true);
  const called = [];
  const getWeather = agentTool({
    name: "get_weather",
    description,
    parameters,
    execute: async (input) => {
      called.push(input);
      return "sunny";
    },
  });
  const agent = new Agent({ name: "Helper", instructions: "Help.", model, tools: [getWeather] });
  const runner = new Runner({ modelProvider: new OpenAIProvider({ baseURL, apiKey: given.key, useResponses: true }) });
  const whole = await runner.run(agent, "hello");
  print("openai-agents", "whole", { text: whole.finalOutput });
  const stream = await runner.run(agent, QUESTION, { stream: true });
  let text = "";
  for await (const part of stream.toTextStream()) text += part;
  await stream.completed;
  print("openai-agents", "tool", { text, called: called[0] });
}

await openai();
await aiSdk("ai-sdk-openai", createOpenAI({ baseURL, apiKey: given.key })(model));
await aiSdk("ai-sdk-anthropic", createAnthropic({ baseURL, apiKey: given.key })(model));
await openaiAgents();
process.exit(0);
