// RunPod's client for Node.js as a program: one scenario, told as one JSON object a line.
// What the client itself prints are no objects.

import runpodSdk from "runpod-sdk";

const [baseUrl, scenario, jobInput] = process.argv.slice(2);
const sdk = runpodSdk("any", { baseUrl });
const served = sdk.endpoint("default");
const unserved = sdk.endpoint("npm");

const tell = (event) => process.stdout.write(JSON.stringify(event) + "\n");
const prompt = (text) => ({ input: { prompt: text, sampling_params: { stream: true } } });

const scenarios = {
  async run() {
    const accepted = await served.run(prompt("hello"));
    tell({ accepted });
    tell({ ended: await served.statusSync(accepted.id) });
    tell({ status: await served.status(accepted.id) });
  },

  // Longer than the wait it asks for: the client goes on at /status-sync.
  async runSync() {
    tell({ ended: await served.runSync(prompt("slow"), 1000) });
    tell({ failed: await served.runSync(prompt("bad")) });
  },

  async stream() {
    const { id } = await served.run(prompt("steps"));
    for await (const chunk of served.stream(id)) tell({ chunk });
    tell({ status: await served.status(id) });
  },

  // The job whose input is the third argument.
  async given() {
    const { id } = await served.run({ input: JSON.parse(jobInput) });
    for await (const chunk of served.stream(id)) tell({ chunk });
    tell({ status: await served.status(id) });
  },

  async cancel() {
    const { id } = await served.run(prompt("hang"));
    for await (const chunk of served.stream(id)) {
      tell({ chunk });
      tell({ status: await served.status(id) });
      tell({ cancelled: await served.cancel(id) });
    }
    tell({ status: await served.status(id) });
  },

  async queue() {
    for (let left = 2; left; left--) await unserved.run(prompt("hello"));
    tell({ health: await unserved.health() });
    tell({ purged: await unserved.purgeQueue() });
    tell({ health: await served.health() });
  },

  async unknown() {
    await served.status("nobody-u1").catch((error) => tell({ message: error.message }));
  },
};

await scenarios[scenario]();
