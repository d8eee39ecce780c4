// OpenAI's client for Node.js as a program.

import OpenAI from "openai";

const given = JSON.parse(process.argv[2]);
const { model } = given;
const client = new OpenAI({ baseURL: given.base_url, apiKey: given.key, maxRetries: 0 });

const tell = (scenario, seen) => process.stdout.write(JSON.stringify({ scenario, ...seen }) + "\n");
const turns = (content) => [{ role: "user", content }];
const usage = ({ prompt_tokens, completion_tokens }) => [prompt_tokens, completion_tokens];

const failure = (error) => {
  const raised = [];
  for (let each = error; each?.constructor !== Object; each = Object.getPrototypeOf(each)) {
    raised.push(each.constructor.name);
  }
  return { raised, status: error.status ?? null, said: error.message };
};

async function answers() {
  const whole = await client.chat.completions.create({ model, messages: turns("hello") });
  const [choice] = whole.choices;
  tell("whole", {
    text: choice.message.content,
    finish: choice.finish_reason,
    usage: usage(whole.usage),
  });
  const found = [];
  const stream = await client.chat.completions.create({
    model,
    messages: turns("hello"),
    stream: true,
    stream_options: { include_usage: true },
  });
  for await (const chunk of stream) found.push(chunk);
  const last = found.pop();
  tell("stream", {
    text: found.map((chunk) => chunk.choices[0].delta.content ?? "").join(""),
    parts: found.length,
    finish: found.at(-1).choices[0].finish_reason,
    usage: usage(last.usage),
  });
}

async function completion() {
  let text = "";
  const stream = await client.completions.create({ model, prompt: "hello", stream: true });
  for await (const chunk of stream) text += chunk.choices[0].text;
  tell("completion", { text });
}

// The client's own loop: it calls the function and sends what that returned, until there is text.
async function tools() {
  const called = [];
  let text;
  for (const stream of [false, true]) {
    const runner = client.chat.completions.runTools({
      model,
      stream,
      messages: turns("What is the weather in Zürich?"),
      tools: [
        {
          type: "function",
          function: {
            name: "get_weather",
            description: "Tells the weather of a city.",
            parameters: {
              type: "object",
              properties: { city: { type: "string" } },
              required: ["city"],
            },
            parse: JSON.parse,
            function: (given) => {
              called.push(["get_weather", given]);
              return "sunny";
            },
          },
        },
      ],
    });
    text = await runner.finalContent();
  }
  tell("tools", { called, text });
}

async function structured() {
  const schema = {
    type: "object",
    properties: { name: { type: "string" }, people: { type: "integer" } },
    required: ["name", "people"],
    additionalProperties: false,
  };
  const answer = await client.chat.completions.parse({
    model,
    messages: turns("a city as JSON"),
    response_format: { type: "json_schema", json_schema: { name: "city", schema, strict: true } },
  });
  tell("structured", { value: JSON.parse(answer.choices[0].message.content) });
}

async function refusals() {
  for (const [status, wanted] of Object.entries(given.refused)) {
    const { base_url, key, ...own } = { base_url: given.base_url, key: given.key, model, ...wanted };
    const refused = new OpenAI({ baseURL: base_url, apiKey: key, maxRetries: 0 });
    for (const stream of [false, true]) {
      await refused.chat.completions
        .create({ messages: turns("hello"), stream, ...own })
        .catch((error) => tell(status, { stream, ...failure(error) }));
    }
  }
}

async function cut() {
  let text = "";
  try {
    const stream = await client.chat.completions.create({
      model,
      messages: turns("die"),
      stream: true,
    });
    for await (const chunk of stream) text += chunk.choices[0].delta.content ?? "";
  } catch (error) {
    tell("cut", { text, ...failure(error) });
  }
  const again = await client.chat.completions.create({ model, messages: turns("hello") });
  tell("after", { text: again.choices[0].message.content });
}

await answers();
await completion();
await tools();
await structured();
await refusals();
await cut();
