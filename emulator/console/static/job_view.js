// One job: its timeline, what it says while it says it, its input and output, what can be done.

import { ask, told } from "./api.js";
import { DeltaLog } from "./delta_log.js";
import { h, say } from "./dom.js";
import { follow, missing } from "./job_follow.js";
import { JsonView } from "./json_view.js";
import { announce, copy, notice } from "./notices.js";
import { ofJob } from "./outcome.js";
import { StreamView } from "./stream_view.js";
import { Tabs } from "./tabs.js";
import { Timeline } from "./timeline.js";
import { ChangesView, VerdictView } from "./verdict_view.js";
import { statusBadge } from "./job_status.js";

const RETRYABLE = ["FAILED", "TIMED_OUT"];
const ACTIVE = ["IN_QUEUE", "IN_PROGRESS"];
const DRAW_MS = 250;

export class JobView {
  /** @param {() => void} onChange called when something was done to a job */
  constructor(onChange) {
    this.onChange = onChange;
    this.id = null;
    this.job = null;
    this.timeline = new Timeline();
    this.stream = new StreamView("Job output");
    this.output = new JsonView("Output", "output.json");
    this.input = new JsonView("Input", "input.json");
    this.verdict = new VerdictView();
    this.changes = new ChangesView();
    this.badge = statusBadge();
    this.name = h("code", { class: "job-id" });
    this.failure = h("p", { class: "form-error", role: "alert", hidden: true });
    this.facts = h("p", { class: "small muted" });
    this.quiet = h("p", { class: "muted" });
    this.tabs = new Tabs("Job", [
      { name: "Stream", element: h("div", { class: "stack tight" }, this.quiet, this.stream.element) },
      { name: "Output", element: this.output.element },
      { name: "Input", element: this.input.element },
      { name: "Verdict", element: this.verdict.element },
      { name: "Changes", element: this.changes.element },
    ]);
    this.element = h("section", { class: "card detail", "aria-label": "Job" }, this.#head(), this.failure, this.timeline.element, this.facts, this.tabs.element);
  }

  #head() {
    const act = (label, kind, work) => h("button", { type: "button", class: `button small ${kind}`, hidden: true, onclick: work }, label);
    this.cancel = act("Cancel", "danger", () => this.#do("cancel", "Cancelled."));
    this.retry = act("Retry", "primary", () => this.#do("retry", "The job is queued again."));
    this.again = h("a", { class: "button small" }, "Open in the playground");
    this.resend = act("Send again", "", () => this.#sendAgain());
    this.save = act("Save as test", "", () => this.#saveAsTest());
    return h(
      "div",
      { class: "stack tight" },
      h("a", { class: "back small", href: "#/jobs" }, "← All jobs"),
      h("div", { class: "row between" }, h("h2", {}, "Job"), this.badge),
      h("div", { class: "row" }, this.name, h("button", { type: "button", class: "link small", onclick: () => copy(this.id, "Job id") }, "Copy")),
      h("div", { class: "row" }, this.cancel, this.retry, this.resend, this.save, this.again),
    );
  }

  /** Show a job and follow it while it is not over. */
  async show(id) {
    if (id === this.id) return;
    this.leave();
    this.id = id;
    this.abort = new AbortController();
    this.log = new DeltaLog(performance.now());
    this.stream.show(this.log);
    this.tabs.show("Stream");
    this.verdict.show(null);
    this.changes.show(null);
    say(this.name, id);
    this.again.href = `#/playground/${encodeURIComponent(id)}`;
    this.output.show(null);
    this.resend.hidden = this.save.hidden = true;
    const { signal } = this.abort;
    try {
      const job = await ask(`/console/jobs/${encodeURIComponent(id)}`, { signal });
      this.input.show(job.input);
      this.sent = job.input;
      this.resend.hidden = false;
      this.#offerTest(job.endpoint);
      this.#draw(job);
      await this.#follow(signal);
    } catch (error) {
      if (!signal.aborted) this.#fail(told(error));
    }
  }

  /** Look at it no longer. */
  leave() {
    this.abort?.abort();
    clearInterval(this.timer);
    this.id = null;
    this.#fail("");
  }

  async #follow(signal) {
    // A bar that grows is drawn although nothing is said.
    this.timer = setInterval(() => this.timeline.show(this.job), DRAW_MS);
    try {
      const job = await follow(this.id, {
        signal,
        onJob: (summary) => this.#draw(summary),
        onSaid: (text) => this.#say(text),
        onRestart: () => this.#restart(),
      });
      if (signal.aborted) return;
      if (job === null) this.#fail("The server no longer has this job.");
      else this.#end(job);
    } finally {
      if (!signal.aborted) clearInterval(this.timer);
    }
  }

  #say(text) {
    this.log.add(text);
    this.quiet.hidden = true;
    this.stream.changed();
  }

  #restart() {
    this.log.clear();
    this.stream.changed();
  }

  #end(job) {
    const outcome = job.output === undefined ? null : ofJob(job.output);
    const whole = Array.isArray(job.output) ? job.output[job.output.length - 1] : job.output;
    const deltas = whole?.choices?.[0]?.deltas;
    for (const text of missing(this.log, deltas)) this.#say(text);
    if (this.log.count === 0 && outcome?.text) this.#say(outcome.text);
    this.#draw(job);
    this.output.show(job.output ?? null);
    this.verdict.show(outcome);
    this.changes.show(outcome);
    announce(`The job is ${job.status}`);
  }

  #draw(job) {
    this.job = job;
    this.badge.show(job.status);
    this.timeline.show(job);
    this.#fail(job.error ?? "");
    this.cancel.hidden = !ACTIVE.includes(job.status);
    this.retry.hidden = !RETRYABLE.includes(job.status);
    this.quiet.hidden = this.log.count > 0;
    say(this.quiet, ACTIVE.includes(job.status) ? "No output yet." : "No output.");
    const told = [`endpoint ${job.endpoint}`];
    if (job.workerId) told.push(`worker ${job.workerId}`);
    if (job.attempt > 1) told.push(`attempt ${job.attempt}`);
    if (job.losses) told.push(`worker lost ${job.losses}×`);
    if (job.retries) told.push(`retried ${job.retries}×`);
    say(this.facts, told.join(" · "));
  }

  #fail(text) {
    say(this.failure, text);
    this.failure.hidden = text === "";
  }

  /** Send the job's input as a new job, and show that one. */
  async #sendAgain() {
    try {
      const path = `/v2/${encodeURIComponent(this.job.endpoint)}/run`;
      const { id } = await ask(path, { body: { input: this.sent } });
      notice("Sent again as a new job.");
      location.hash = `#/jobs/${encodeURIComponent(id)}`;
    } catch (error) {
      notice(told(error), "bad");
    }
  }

  /** Offer the handler's tests file, which only a server with a handler of the user's has. */
  async #offerTest(endpoint) {
    const { id } = this;
    try {
      const description = await ask("/console/description", { background: true });
      if (id === this.id) this.save.hidden = !description.endpoints.includes(endpoint);
    } catch {
      // The button stays hidden.
    }
  }

  async #saveAsTest() {
    const name = prompt("The name of the new test");
    if (name === null) return;
    try {
      const { file } = await ask(`/console/jobs/${encodeURIComponent(this.id)}/test`, { body: { name } });
      notice(`Saved in ${file}.`);
    } catch (error) {
      notice(told(error), "bad");
    }
  }

  async #do(operation, done) {
    const { id, job } = this;
    try {
      await ask(`/v2/${encodeURIComponent(job.endpoint)}/${operation}/${encodeURIComponent(id)}`, { method: "POST" });
      notice(done);
      if (operation === "retry" && id === this.id) {
        this.id = null;
        this.abort.abort();
        await Promise.all([this.show(id), this.onChange()]);
      } else this.onChange();
    } catch (error) {
      notice(told(error), "bad");
    }
  }
}
