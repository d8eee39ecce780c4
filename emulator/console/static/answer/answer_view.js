// The answer to one request: as it comes, then its verdict, its changes, its JSON.

import { toggle } from "../page/choice.js";
import { h, say } from "../page/dom.js";
import { ErrorView } from "./error_view.js";
import { Facts } from "./facts.js";
import { count, duration, rate, sentence } from "../page/format.js";
import { readJobError } from "../jobs/job_error.js";
import { JsonView } from "../page/json_view.js";
import { ModelAnswerView } from "./model_answer_view.js";
import { announce } from "../page/notices.js";
import { OutputView } from "../jobs/output_view.js";
import { ReplyForm } from "./reply_form.js";
import { Rhythm } from "./rhythm.js";
import { Tabs } from "../page/tabs.js";
import { TurnList } from "./turn_list.js";
import { ChangesView, VerdictView } from "./verdict_view.js";
import { WireView } from "../wire/wire_view.js";

const STATES = {
  sending: "Sending",
  queued: "Queued",
  running: "Generating",
  done: "Done",
  failed: "Failed",
  stopped: "Stopped",
};
const FACTS = {
  "First token": "From sending the request to the first text, measured in the browser",
  "Tokens/s": "After the first token; counted from deltas until the engine reports its own number",
  Tokens: "Prompt tokens + answer tokens",
  Time: "From sending the request to the end of the answer",
  Queue: "How long the job waited for a worker",
  "Run time": "How long the worker ran the job",
  Finish: "Why the answer ended: the finish reason, and the stop sequence if there was one",
};
const NO_FACTS = Object.fromEntries(["First token", "Tokens/s", "Tokens", "Time", "Queue", "Finish"].map((name) => [name, "–"]));
// As in styles/layout.css: one column.
const NARROW = "(max-width: 64rem)";

export class AnswerView {
  /** @param {HTMLElement} empty what is shown before anything was asked
   *  @param {() => void} onStop
   *  @param {(turns: import("./turns.js").Turn[]) => void} onReply called with a chat that goes on */
  constructor(empty, onStop, onReply) {
    /** @type {import("../playground/run.js").Run|null} */
    this.run = null;
    this.empty = empty;
    this.stream = new ModelAnswerView("Answer");
    this.turns = new TurnList();
    this.reply = new ReplyForm(onReply);
    this.output = new OutputView("Output");
    this.rhythm = new Rhythm();
    this.facts = new Facts(FACTS);
    this.json = new JsonView("Final JSON", "answer.json");
    this.verdict = new VerdictView();
    this.changes = new ChangesView();
    this.wire = new WireView();
    this.state = h("span", { class: "badge", hidden: true });
    this.model = h("span", { class: "small muted" });
    this.jobLink = h("a", { class: "small", hidden: true }, "View job");
    this.failure = new ErrorView();
    this.waits = h("p", { role: "status", hidden: true });
    // Where the answer is below the request, the request's own button is out of sight.
    this.stop = h("button", { type: "button", class: "button small danger narrow-only", hidden: true, onclick: onStop }, "Stop");
    this.tabs = new Tabs("Answer", [
      { name: "Answer", element: this.#answer() },
      { name: "Verdict", element: this.verdict.element },
      { name: "Changes", element: this.changes.element },
      { name: "JSON", element: this.json.element },
      { name: "Wire", element: this.wire.element },
    ]);
    this.tabs.onShow = () => this.#drawWire();
    this.element = h(
      "section",
      { class: "card answer", "aria-label": "Answer" },
      h("div", { class: "row between" }, h("div", { class: "row" }, h("h1", {}, "Answer"), this.model), h("div", { class: "row" }, this.jobLink, this.state, this.stop)),
      this.facts.element,
      this.tabs.element,
    );
    this.stream.onDrawn = () => this.rhythm.changed();
    this.setPlain(false);
  }

  #answer() {
    this.output.element.hidden = true;
    const boundaries = toggle("Boundaries", false, (on) => this.stream.setBoundaries(on));
    const timing = toggle("Timing", false, (on) => {
      this.rhythm.element.hidden = !on;
      this.rhythm.draw();
    });
    this.rhythm.element.hidden = true;
    this.stream.element.hidden = true;
    this.isTimed = timing.input;
    this.modelTools = h("div", { class: "row" }, boundaries.element, timing.element);
    return h(
      "div",
      { class: "stack tight" },
      this.modelTools,
      this.failure.element,
      this.waits,
      this.rhythm.element,
      this.empty,
      this.turns.element,
      this.stream.element,
      this.reply.element,
      this.output.element,
    );
  }

  /** Show only what a program's job has, and nothing of a model's answer; or all. */
  setPlain(isPlain) {
    this.isPlain = isPlain;
    this.modelTools.hidden = isPlain;
    this.rhythm.element.hidden = isPlain || !this.isTimed.checked;
    for (const name of ["Verdict", "Changes"]) this.tabs.hide(name, isPlain);
    const isEmpty = this.run === null;
    this.stream.element.hidden = isEmpty || isPlain;
    this.output.element.hidden = isEmpty || !isPlain;
    if (isEmpty) this.facts.show(isPlain ? { Time: "–", Queue: "–", "Run time": "–" } : NO_FACTS);
  }

  /** Show a run from its beginning. @param {import("../playground/run.js").Run} run */
  begin(run) {
    this.run = run;
    this.empty.hidden = true;
    this.output.show(run.output);
    this.setPlain(run.output.isPlain);
    this.turns.show(run.request.turns ?? []);
    this.stream.element.classList.toggle("chat", run.request.turns !== undefined);
    this.reply.hide();
    this.stream.show(run.answer);
    this.rhythm.show(run.log);
    this.verdict.show(null);
    this.changes.show(null);
    this.tabs.badge("Verdict", "");
    this.tabs.badge("Changes", "");
    this.wire.show(run);
    // Whoever watches the wire goes on watching it.
    if (this.tabs.shown !== "Wire") this.tabs.show("Answer");
    if (matchMedia(NARROW).matches) this.element.scrollIntoView();
    announce(run.output.isPlain ? "Running" : "Generating");
  }

  /** Something of the run is new: what it says is drawn by itself, with the next frame. */
  draw() {
    const { run } = this;
    this.stop.hidden = run.over;
    this.state.hidden = false;
    this.state.className = `badge state-${run.state}`;
    if (run.output.isPlain !== this.isPlain) this.setPlain(run.output.isPlain);
    this.output.changed();
    say(this.state, stateWord(run));
    this.stream.element.setAttribute("aria-busy", String(!run.over));
    this.jobLink.hidden = run.job === null;
    if (run.job !== null) this.jobLink.setAttribute("href", `#/jobs/${encodeURIComponent(run.job.id)}`);
    this.facts.show(factsOf(run));
    this.failure.show(run.error?.message ?? "");
    say(this.model, modelOf(run));
    this.waits.hidden = !run.job?.message || run.over;
    say(this.waits, run.job?.message ? sentence(run.job.message) : "");
    this.#drawWire();
  }

  /** Draw the wire only where it is seen: a fast stream has a part for every token. */
  #drawWire() {
    if (this.tabs.shown === "Wire") this.wire.draw();
  }

  /** Show what is known at the run's end. */
  end() {
    const { run } = this;
    const { outcome, error } = run;
    this.draw();
    this.stream.changed();
    this.rhythm.draw();
    this.verdict.show(outcome);
    const changed = this.changes.show(outcome);
    const issues = outcome?.validation?.issues.length ?? 0;
    this.tabs.badge("Verdict", issues ? String(issues) : outcome?.validation ? "✓" : "");
    this.tabs.badge("Changes", changed ? String(changed) : "");
    this.json.show(outcome?.json ?? run.job ?? { error: error?.message ?? run.state });
    if (run.state === "done" && run.request.turns) this.reply.show(run.request.turns, outcome.text ?? run.answer.text.text(), outcome.calls);
    const spoken = `${stateWord(run)}, ${run.output.isPlain ? "" : `${count(run.log.count)} deltas `}in ${duration(run.endedMs)}`;
    announce(error === null ? spoken : `Failed: ${readJobError(error.message).headline}`);
  }
}

function stateWord({ state, output }) {
  return state === "running" && output.isPlain ? "Running" : STATES[state];
}

/** Return the name of the model that answered; before that, of the one that was asked for. */
function modelOf({ outcome, request }) {
  const json = outcome?.json;
  const name = (Array.isArray(json) ? json[json.length - 1] : json)?.model;
  const asked = request.body.model ?? request.body.input?.model;
  return [name, asked].find((each) => typeof each === "string" && each !== "") ?? "";
}

function factsOf(run) {
  const { log, outcome, job } = run;
  const time = duration(run.endedMs ?? performance.now() - run.began);
  const queue = job === null ? "–" : duration(job.startedAt ? job.startedAt - job.queuedAt : null);
  if (run.output.isPlain) {
    return { Time: time, Queue: queue, "Run time": duration(job?.startedAt ? (job.endedAt ?? Date.now()) - job.startedAt : null) };
  }
  const exact = outcome?.tokens ?? null;
  // The gaps are as many as the tokens but one, however many came together.
  const spanMs = (log.lastMs ?? 0) - (log.firstMs ?? 0);
  const measured = exact !== null && exact.output > 1 && spanMs > 0 ? ((exact.output - 1) / spanMs) * 1000 : null;
  // Of a job each delta is heard; fast tokens of OpenAI's streams share events.
  const sign = run.request.kind === "job" ? "≈" : "≥";
  const known = outcome?.perSecond ?? measured;
  return {
    "First token": duration(log.firstMs),
    "Tokens/s": known === null && log.rate !== null ? `${sign} ${rate(log.rate)}` : rate(known),
    Tokens: exact === null ? (log.count ? `${sign} ${count(log.count)}` : "–") : `${count(exact.input)} + ${count(exact.output)}`,
    Time: time,
    Queue: queue,
    Finish: endedBy(run),
  };
}

function endedBy(run) {
  if (run.outcome === null) return run.over ? STATES[run.state] : "–";
  const { finish, stop } = run.outcome;
  return stop === null ? (finish ?? "–") : `${finish} ${JSON.stringify(stop)}`;
}
