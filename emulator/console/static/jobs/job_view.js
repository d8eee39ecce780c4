// One job: its timeline, what it says while it says it, its input and output, what can be done.

import { ask, told } from "../server/api.js";
import { h, say } from "../page/dom.js";
import { sentence } from "../page/format.js";
import { ErrorView } from "../answer/error_view.js";
import { follow } from "./job_follow.js";
import { JobOutput } from "./job_output.js";
import { JsonView } from "../page/json_view.js";
import { ModelAnswerView } from "../answer/model_answer_view.js";
import { announce, copy, notice } from "../page/notices.js";
import { OutputView } from "./output_view.js";
import { Tabs } from "../page/tabs.js";
import { Timeline } from "./timeline.js";
import { ChangesView, VerdictView } from "../answer/verdict_view.js";
import { statusBadge } from "./job_status.js";

const RETRYABLE = ["FAILED", "TIMED_OUT"];
const ACTIVE = ["IN_QUEUE", "IN_PROGRESS"];
const DRAW_MS = 250;
// The worker of the server's own engine.
const LOCAL_WORKER = "local";

export class JobView {
  /** @param {() => void} onChange called when something was done to a job */
  constructor(onChange) {
    this.onChange = onChange;
    this.id = null;
    this.job = null;
    this.timeline = new Timeline();
    this.stream = new ModelAnswerView("Job output");
    this.outputView = new OutputView("Output");
    this.json = new JsonView("Output as JSON", "output.json");
    this.input = new JsonView("Input", "input.json");
    this.verdict = new VerdictView();
    this.changes = new ChangesView();
    this.badge = statusBadge();
    this.name = h("code", { class: "job-id" });
    this.failure = new ErrorView();
    this.facts = h("p", { class: "small muted" });
    this.worker = h("a", { class: "small job-id", hidden: true });
    this.quiet = h("p", { class: "muted" });
    this.waits = h("p", { role: "status", hidden: true });
    this.tabs = new Tabs("Job", [
      { name: "Output", element: h("div", { class: "stack tight" }, this.quiet, this.stream.element, this.outputView.element) },
      { name: "Input", element: this.input.element },
      { name: "Verdict", element: this.verdict.element },
      { name: "Changes", element: this.changes.element },
      { name: "JSON", element: this.json.element },
    ]);
    this.element = h("section", { class: "card detail", "aria-label": "Job" }, this.#head(), this.failure.element, this.waits, this.timeline.element, h("div", { class: "row" }, this.facts, this.worker), this.tabs.element);
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
    this.tabs.show("Output");
    this.verdict.show(null);
    this.changes.show(null);
    say(this.name, id);
    this.again.href = `#/playground/${encodeURIComponent(id)}`;
    this.#setOutput(new JobOutput(true));
    this.json.show(null);
    this.resend.hidden = this.save.hidden = true;
    const { signal } = this.abort;
    try {
      const job = await ask(`/console/jobs/${encodeURIComponent(id)}`, { signal });
      const description = await ask("/console/description", { signal });
      this.#setOutput(new JobOutput(description.model !== null));
      this.input.show(job.input);
      this.sent = job.input;
      this.resend.hidden = false;
      // Only the endpoint of a handler has a tests file.
      this.save.hidden = !description.endpoints.includes(job.endpoint);
      this.#draw(job);
      await this.#follow(signal);
    } catch (error) {
      if (!signal.aborted) this.failure.show(told(error));
    }
  }

  /** Look at it no longer. */
  leave() {
    this.abort?.abort();
    clearInterval(this.timer);
    this.id = null;
    this.failure.show("");
  }

  async #follow(signal) {
    // A bar that grows is drawn although nothing is said.
    this.timer = setInterval(() => this.timeline.show(this.job, this.output.isPlain), DRAW_MS);
    try {
      const job = await follow(this.id, {
        signal,
        onJob: (summary) => this.#draw(summary),
        onSaid: (text) => {
          this.output.say(text);
          this.#changed();
        },
        onChunk: (chunk) => {
          this.output.addChunk(chunk);
          this.#changed();
        },
        onProgress: (progress) => {
          this.output.setProgress(progress);
          this.#changed();
        },
        onRestart: () => {
          this.output.clear();
          this.#changed();
        },
      });
      if (signal.aborted) return;
      if (job === null) this.failure.show("The server no longer has this job.");
      else this.#end(job);
    } finally {
      if (!signal.aborted) clearInterval(this.timer);
    }
  }

  /** Show another job's output from its beginning. */
  #setOutput(output) {
    this.output = output;
    this.stream.show(output.answer);
    this.outputView.show(output);
    this.#changed();
  }

  #changed() {
    const { isPlain, answer } = this.output;
    this.stream.element.hidden = isPlain;
    this.outputView.element.hidden = !isPlain;
    this.quiet.hidden = isPlain || answer.log.count > 0 || answer.calls.length > 0;
    for (const name of ["Verdict", "Changes"]) this.tabs.hide(name, isPlain);
    this.stream.changed();
    this.outputView.changed();
  }

  #end(job) {
    this.output.end(job);
    this.#draw(job);
    this.json.show(job.output ?? null);
    this.verdict.show(this.output.outcome);
    this.changes.show(this.output.outcome);
    announce(`The job is ${job.status}`);
  }

  #draw(job) {
    this.job = job;
    this.badge.show(job.status);
    this.output.setJob(job);
    this.timeline.show(job, this.output.isPlain);
    this.failure.show(job.error ?? "");
    this.waits.hidden = !job.message;
    say(this.waits, job.message ? sentence(job.message) : "");
    this.cancel.hidden = !ACTIVE.includes(job.status);
    this.retry.hidden = !RETRYABLE.includes(job.status);
    this.#changed();
    say(this.quiet, ACTIVE.includes(job.status) ? "No output yet." : "No output.");
    const told = [`endpoint ${job.endpoint}`];
    if (job.attempt > 1) told.push(`attempt ${job.attempt}`);
    if (job.losses) told.push(`worker lost ${job.losses}×`);
    if (job.retries) told.push(`retried ${job.retries}×`);
    this.#showWorker(job);
    say(this.facts, told.join(" · "));
  }

  /** Link to the job's lines in the log of its worker. The engine in the server has no log of its own. */
  #showWorker({ id, endpoint, workerId }) {
    const hasLog = Boolean(workerId) && workerId !== LOCAL_WORKER;
    this.worker.hidden = !hasLog;
    if (!hasLog) return;
    this.worker.setAttribute("href", `#/workers/${[endpoint, workerId, id].map(encodeURIComponent).join("/")}`);
    say(this.worker, `Log of worker ${workerId}`);
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
