// RunPod's client for Node.js: a job whose output is streamed. The last output of a job repeats the
// whole text, and it is the only one with a `finish_reason`.

import runpodSdk from "runpod-sdk";

const sdk = runpodSdk(process.env.RUNPOD_API_KEY, {
  baseUrl: process.env.RUNPOD_ENDPOINT_BASE_URL,
});
const endpoint = sdk.endpoint(process.env.RUNPOD_ENDPOINT_ID);
const { id } = await endpoint.run({ input: { prompt: "hi", stream: true } });
for await (const { output } of endpoint.stream(id)) {
  const [choice] = output.choices;
  if (!("finish_reason" in choice)) process.stdout.write(choice.text);
}
