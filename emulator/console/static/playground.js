// The playground: a request on one side, its answer as it comes on the other.

import { ask, told } from "./api.js";
import { toggle } from "./choice.js";
import { h, say } from "./dom.js";
import { Facts } from "./facts.js";
import { count, duration, rate } from "./format.js";
import { JsonView } from "./json_view.js";
import { onKey } from "./keys.js";
import { announce, copy, notice } from "./notices.js";
import { RequestForm } from "./request_form.js";
import { Rhythm } from "./rhythm.js";
import { Run } from "./run.js";
import { SNIPPETS } from "./snippets.js";
import { onHealth } from "./status.js";
import { StreamView } from "./stream_view.js";
import { Tabs } from "./tabs.js";
import { ChangesView, VerdictView } from "./verdict_view.js";

const STATES = {
  sending: "Sending",
  queued: "In the queue",
  running: "Generating",
  done: "Done",
  failed: "Failed",
  stopped: "Stopped",
};
const EXAMPLES = [
  ["completion", "Once upon a time, in a small village by the sea,"],
  ["chat", "Explain what a queue is, in two sentences."],
  ["job", "The three primary colours are red,"],
];
// As in layout.css: one column.
const NARROW = "(max-width: 64rem)";
const FACTS = {
  "First token": "From sending the request to the first text, as this page saw it",
  "Tokens/s": "After the first one; deltas are counted until the engine tells its own number",
  Tokens: "What the model was given, and what it said",
  Time: "From sending the request to its end",
  Queue: "How long the job waited for a worker",
  Ended: "Why it ended",
};

export class PlaygroundScreen {
  title = "Playground";

  constructor() {
    /** @type {Run|null} */
    this.run = null;
    this.form = new RequestForm();
    this.stream = new StreamView("Answer");
    this.rhythm = new Rhythm();
    this.facts = new Facts(FACTS);
    this.json = new JsonView("The final JSON", "answer.json");
    this.verdict = new VerdictView();
    this.changes = new ChangesView();
    this.boundaries = toggle("Boundaries", false, (on) => this.stream.setBoundaries(on));
    this.timing = toggle("Timing", false, (on) => this.#showTiming(on));
    this.rhythm.element.hidden = true;
    this.element = h("div", { class: "playground" }, this.#requestSide(), this.#answerSide());
    this.stream.onDrawn = () => this.rhythm.changed();
    // Wherever the focus is, as long as this screen is the one in sight.
    document.addEventListener("keydown", (event) => {
      if (!this.element.isConnected || document.querySelector("dialog[open]")) return;
      if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) this.#start();
      if (event.key === "Escape") this.#stop();
    });
    this.#describe();
    onKey(() => this.#describe());
    onHealth((health) => {
      if (health.engine.state === "ready" && this.form.description?.engine === null) this.#describe();
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

  #answerSide() {
    this.state = h("span", { class: "badge", hidden: true });
    this.jobLink = h("a", { class: "small", hidden: true }, "Look at the job");
    this.failure = h("p", { class: "form-error", role: "alert", hidden: true });
    this.empty = h(
      "div",
      { class: "empty" },
      h("p", { class: "empty-title" }, "Nothing was asked yet"),
      h("p", { class: "muted" }, "Write a prompt and run it, or begin with one of these:"),
      h("div", { class: "stack tight" }, EXAMPLES.map(([kind, text]) => h("button", { type: "button", class: "example", onclick: () => this.form.example(kind, text) }, h("span", { class: "small muted" }, kind), text))),
    );
    this.goOn = h("button", { type: "button", class: "button small", hidden: true, onclick: () => this.#goOn() }, "Go on with the chat");
    const answer = h(
      "div",
      { class: "stack tight" },
      h("div", { class: "row" }, this.boundaries.element, this.timing.element, this.goOn),
      this.failure,
      this.rhythm.element,
      this.empty,
      this.stream.element,
    );
    this.tabs = new Tabs("Answer", [
      { name: "Answer", element: answer },
      { name: "Verdict", element: this.verdict.element },
      { name: "Changes", element: this.changes.element },
      { name: "JSON", element: this.json.element },
    ]);
    this.stream.element.hidden = true;
    // Where the answer is below the request, its other button is out of sight.
    this.haltHere = h("button", { type: "button", class: "button small danger narrow-only", hidden: true, onclick: () => this.#stop() }, "Stop");
    this.answer = h(
      "section",
      { class: "card answer", "aria-label": "Answer" },
      h("div", { class: "row between" }, h("h1", {}, "Answer"), h("div", { class: "row" }, this.jobLink, this.state, this.haltHere)),
      this.facts.element,
      this.tabs.element,
    );
    return this.answer;
  }

  async #describe() {
    try {
      this.form.describe(await ask("/console/description"));
      this.form.complain(null, "");
    } catch (error) {
      this.form.complain(null, told(error));
    }
  }

  async #loadJob(id) {
    history.replaceState(null, "", "#/playground");
    try {
      const job = await ask(`/console/jobs/${encodeURIComponent(id)}`);
      if (this.form.description === null) await this.#describe();
      if (!this.form.load(job.input)) notice("The form has no place for this job's input.", "bad");
    } catch (error) {
      notice(told(error), "bad");
    }
  }

  #asked() {
    this.form.complain(null, "");
    if (this.form.description === null) {
      this.form.complain(null, "The server has not said yet what may be asked of it.");
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
    const run = new Run(request, () => this.#changed(run));
    this.run = run;
    this.empty.hidden = true;
    this.stream.element.hidden = false;
    this.goOn.hidden = true;
    this.stream.show(run.log);
    this.rhythm.show(run.log);
    this.verdict.show(null);
    this.changes.show(null);
    this.tabs.badge("Verdict", "");
    this.tabs.badge("Changes", "");
    this.tabs.show("Answer");
    this.#changed(run);
    if (matchMedia(NARROW).matches) this.answer.scrollIntoView();
    announce("Generating");
    await run.go();
    if (this.run === run) this.#ended(run);
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
  #changed(run) {
    if (this.run !== run || this.frame !== undefined) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = undefined;
      this.#draw();
    });
    this.stream.changed();
  }

  #draw() {
    const run = this.run;
    const pressed = [this.go, this.halt].includes(document.activeElement);
    this.go.hidden = !run.over;
    this.halt.hidden = run.over;
    // A button that goes takes the focus with it.
    if (pressed) (run.over ? this.go : this.halt).focus({ preventScroll: true });
    this.haltHere.hidden = run.over;
    this.state.hidden = false;
    this.state.className = `badge state-${run.state}`;
    say(this.state, STATES[run.state]);
    this.stream.element.setAttribute("aria-busy", String(!run.over));
    this.jobLink.hidden = run.job === null;
    if (run.job !== null) this.jobLink.setAttribute("href", `#/jobs/${encodeURIComponent(run.job.id)}`);
    this.#drawFacts(run);
    this.failure.hidden = run.error === null;
    say(this.failure, run.error?.message ?? "");
  }

  #drawFacts(run) {
    const { log, outcome, job } = run;
    const exact = outcome?.tokens ?? null;
    // The gaps are as many as the tokens but one, however many came together.
    const spanMs = (log.lastMs ?? 0) - (log.firstMs ?? 0);
    const measured = exact !== null && exact.output > 1 && spanMs > 0 ? ((exact.output - 1) / spanMs) * 1000 : log.rate;
    this.facts.show({
      "First token": duration(log.firstMs),
      "Tokens/s": rate(outcome?.perSecond ?? measured),
      Tokens: exact === null ? (log.count ? `≈ ${count(log.count)}` : "–") : `${count(exact.input)} + ${count(exact.output)}`,
      Time: duration(run.endedMs ?? performance.now() - run.began),
      Queue: job === null ? "–" : duration(job.startedAt ? job.startedAt - job.queuedAt : null),
      Ended: endedBy(run),
    });
  }

  #ended(run) {
    this.#draw();
    this.stream.changed();
    this.rhythm.draw();
    const { outcome } = run;
    this.verdict.show(outcome);
    const changed = this.changes.show(outcome);
    const issues = outcome?.validation?.issues.length ?? 0;
    this.tabs.badge("Verdict", issues ? String(issues) : outcome?.validation ? "✓" : "");
    this.tabs.badge("Changes", changed ? String(changed) : "");
    this.json.show(outcome?.json ?? (run.job ? run.job : { error: run.error?.message ?? run.state }));
    this.goOn.hidden = run.state !== "done" || run.request.kind !== "chat";
    if (run.error !== null && run.error.param !== null) this.form.complain(run.error.param, run.error.message);
    announce(run.error === null ? `${STATES[run.state]}, ${count(run.log.count)} deltas in ${duration(run.endedMs)}` : `Failed: ${run.error.message}`);
  }

  #goOn() {
    this.form.messages.goOn(this.run.outcome.text ?? this.run.log.text());
  }

  #showTiming(on) {
    this.rhythm.element.hidden = !on;
    this.rhythm.draw();
  }

  async #copy(name, make) {
    const request = this.#asked();
    if (request === null) return;
    // A job's events are this page's own business; its one JSON is what /runsync is for.
    const job = request.kind === "job";
    const path = job ? `${request.path}sync` : request.path;
    const needsKey = await keyIsNeeded();
    const asked = { ...request, url: `${location.origin}${path}`, stream: request.stream && !job, needsKey };
    await copy(make(asked), needsKey ? `${name}, which takes the key from API_KEY,` : name);
  }
}

function endedBy(run) {
  if (run.outcome === null) return run.over ? STATES[run.state] : "–";
  const { finish, stop } = run.outcome;
  return stop === null ? (finish ?? "–") : `${finish} ${JSON.stringify(stop)}`;
}

/** Whether the server wants a key, by its own description. */
async function keyIsNeeded() {
  const description = await ask("/openapi.json");
  return description.security !== undefined;
}
