// The playground: a request on one side, its answer as it comes on the other.

import { AnswerView } from "../answer/answer_view.js";
import { ask, told } from "../server/api.js";
import { h, say } from "../page/dom.js";
import { key, onKey } from "../server/keys.js";
import { copy, notice } from "../page/notices.js";
import { RequestForm } from "./request_form.js";
import { Run } from "./run.js";
import { SNIPPETS } from "./snippets.js";
import { onHealth } from "../server/status.js";

const EXAMPLES = [
  ["completion", "Completion", "Once upon a time, in a small village by the sea,"],
  ["chat", "Chat", "Explain what a queue is, in two sentences."],
  ["job", "RunPod job", "The three primary colours are red,"],
];

export class PlaygroundScreen {
  title = "Playground";

  constructor() {
    /** @type {Run|null} */
    this.run = null;
    this.form = new RequestForm(() => this.#describe());
    this.answer = new AnswerView(this.#empty(), () => this.#stop(), (turns) => this.#reply(turns));
    this.element = h("div", { class: "playground" }, this.#requestSide(), this.answer.element);
    // Wherever the focus is, as long as this screen is the one in sight.
    document.addEventListener("keydown", (event) => {
      if (!this.element.isConnected || document.querySelector("dialog[open]")) return;
      if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) this.#start();
      if (event.key === "Escape") this.#stop();
    });
    this.#describe();
    onKey(() => this.#describe());
    onHealth((health) => {
      if (health.engine?.state === "ready" && this.form.description?.engine === null) this.#describe();
    });
  }

  show([jobId]) {
    if (jobId) this.#loadJob(jobId);
  }

  hide() {}

  #requestSide() {
    this.go = h("button", { type: "button", class: "button primary wide", onclick: () => this.#start() }, "Run", h("kbd", {}, "Ctrl ↵"));
    this.halt = h("button", { type: "button", class: "button danger wide", hidden: true, onclick: () => this.#stop() }, "Stop", h("kbd", {}, "Esc"));
    const copies = Object.entries(SNIPPETS).map(([name, make]) =>
      h("button", { type: "button", class: "button small", onclick: () => this.#copy(name, make) }, name),
    );
    return h(
      "section",
      { class: "card request", "aria-label": "Request" },
      this.form.element,
      h(
        "div",
        { class: "actions" },
        this.go,
        this.halt,
        h("div", { class: "row copies", role: "group", "aria-label": "Copy as" }, h("span", { class: "small muted" }, "Copy as"), copies),
      ),
      this.form.parameters.element,
    );
  }

  #empty() {
    const examples = EXAMPLES.map(([kind, name, text]) =>
      h("button", { type: "button", class: "example", onclick: () => this.form.example(kind, text) }, h("span", { class: "small muted" }, name), text),
    );
    this.hint = h("p", { class: "muted" }, "Write a prompt and press Run, or start with an example:");
    this.examples = h("div", { class: "stack tight" }, examples);
    return h("div", { class: "empty" }, h("p", { class: "empty-title" }, "No answer yet"), this.hint, this.examples);
  }

  /** Load the form, of the selected endpoint if there are several handlers. */
  async #describe(endpoint = this.form.endpoint.value) {
    const query = endpoint ? `?endpoint=${encodeURIComponent(endpoint)}` : "";
    try {
      const description = await ask(`/console/description${query}`);
      this.form.describe(description);
      if (this.run === null) this.answer.setPlain(description.model === null);
      if (description.handler) {
        // The examples are prompts, which only a model answers.
        this.examples.hidden = true;
        say(this.hint, "Write the input of a job as JSON and press Run.");
      }
      this.form.complain(null, (description.examples?.problems ?? []).join("\n"));
      if (description.model !== null) this.form.setModels((await ask("/v1/models", { background: true })).data.map(({ id }) => id));
    } catch (error) {
      this.form.complain(null, told(error));
    }
  }

  async #loadJob(id) {
    history.replaceState(null, "", "#/playground");
    try {
      const job = await ask(`/console/jobs/${encodeURIComponent(id)}`);
      if (this.form.description === null) await this.#describe();
      const { endpoint, endpoints } = this.form.description ?? {};
      if (endpoint !== job.endpoint && endpoints?.includes(job.endpoint)) await this.#describe(job.endpoint);
      if (!this.form.load(job.input)) notice("This job's input does not fit the form.", "bad");
    } catch (error) {
      notice(told(error), "bad");
    }
  }

  /** The request in the form, or null when the form has said what is wrong with it. */
  #asked() {
    this.form.complain(null, "");
    if (this.form.description === null) {
      this.form.complain(null, "The form is still being loaded from the server.");
      this.#describe();
      return null;
    }
    try {
      return this.form.request();
    } catch (error) {
      this.form.complain(error.param ?? null, error.message);
      return null;
    }
  }

  async #start() {
    if (this.run !== null && !this.run.over) return;
    const request = this.#asked();
    if (request === null) return;
    const run = new Run(request, () => this.#changed());
    this.run = run;
    this.answer.begin(run);
    this.#changed();
    await run.go();
    this.#draw();
    this.answer.end();
    if (run.error !== null && run.error.param !== null) this.form.complain(run.error.param, run.error.message);
    await run.readStatus();
  }

  /** Run the chat of the answer with another turn. */
  #reply(turns) {
    this.form.reply(this.run.request.kind, turns);
    this.#start();
  }

  async #stop() {
    if (this.run === null || this.run.over) return;
    try {
      await this.run.stop();
    } catch (error) {
      notice(told(error), "bad");
    }
  }

  /** Something is new; what it looks like is drawn with the next frame. */
  #changed() {
    this.answer.stream.changed();
    if (this.frame !== undefined) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = undefined;
      this.#draw();
    });
  }

  #draw() {
    const { over } = this.run;
    const pressed = [this.go, this.halt].includes(document.activeElement);
    this.go.hidden = !over;
    this.halt.hidden = over;
    // A button that goes takes the focus with it.
    if (pressed) (over ? this.go : this.halt).focus({ preventScroll: true });
    this.answer.draw();
  }

  async #copy(name, make) {
    const request = this.#asked();
    if (request === null) return;
    // A job's events are this page's own business; its one JSON is what /runsync is for.
    const job = request.kind === "job";
    const path = job ? `${request.path}sync` : request.path;
    // A server that wants none does not mind one.
    const needsKey = key() !== null;
    const asked = { ...request, url: `${location.origin}${path}`, stream: request.stream && !job, needsKey };
    await copy(make(asked), needsKey ? `${name} (reads the key from API_KEY)` : name);
  }
}
