// The log of one worker, followed until the worker has ended.

import { told } from "../server/api.js";
import { h, say } from "../page/dom.js";
import { toggle } from "../page/choice.js";
import { followLog, MAX_TAIL_LINES } from "./log_follow.js";
import { JobLines } from "./log_line.js";
import { LogView } from "./log_view.js";
import { announce } from "../page/notices.js";
import { isOrderlyEnd } from "./worker_list.js";

export class WorkerView {
  constructor() {
    this.name = h("code", { class: "job-id" });
    this.state = h("p", { class: "small muted" });
    this.failure = h("p", { class: "form-error", role: "alert", hidden: true });
    this.log = new LogView("Worker log");
    this.onlyJob = toggle("Only this job", false, (on) => this.log.setFilter(on));
    this.jobLink = h("a", { class: "small" }, "View job");
    this.jobRow = h("div", { class: "row", hidden: true }, this.onlyJob.element, this.jobLink);
    this.element = h(
      "section",
      { class: "card detail", "aria-label": "Worker" },
      h("div", { class: "stack tight" }, h("a", { class: "back small", href: "#/workers" }, "← All workers"), h("h2", {}, "Worker log"), this.name, this.state, this.jobRow),
      this.failure,
      this.log.element,
    );
    this.shown = "";
  }

  /** Show the log of a worker, or only a job's lines of it, and follow it while the worker runs. */
  async show(endpoint, worker, job) {
    const shown = JSON.stringify([endpoint, worker, job]);
    if (shown === this.shown) return;
    this.leave();
    this.shown = shown;
    this.abort = new AbortController();
    const { signal } = this.abort;
    this.jobRow.hidden = job === undefined;
    this.onlyJob.input.checked = job !== undefined;
    this.jobLink.setAttribute("href", `#/jobs/${encodeURIComponent(job ?? "")}`);
    const jobLines = job === undefined ? null : new JobLines(job);
    this.log.clear();
    this.log.setFilter(job !== undefined);
    this.log.element.hidden = false;
    say(this.name, worker);
    say(this.state, "Connecting…");
    let lastSystemLine = "";
    try {
      await followLog(endpoint, worker, {
        signal,
        tail: job === undefined ? undefined : MAX_TAIL_LINES,
        onConnect: () => say(this.state, "Following the log."),
        onBreak: (reason) => say(this.state, `${reason} Connecting again…`),
        onLine: (line) => {
          if (line.source === "system") lastSystemLine = line.line;
          this.log.add({ ...line, isOfJob: jobLines?.includes(line) });
        },
      });
      if (signal.aborted) return;
      // The last line of the server describes how the worker ended.
      if (isOrderlyEnd(lastSystemLine)) this.#end(`The worker has ended: ${lastSystemLine}.`, "");
      else this.#end("The worker has ended.", lastSystemLine);
    } catch (error) {
      if (signal.aborted) return;
      this.log.element.hidden = this.log.total === 0;
      this.#end("", told(error));
    }
  }

  /** Stop following. */
  leave() {
    this.abort?.abort();
    this.shown = "";
    this.#fail("");
  }

  #end(state, reason) {
    say(this.state, state);
    this.#fail(reason);
    announce(state);
  }

  #fail(text) {
    say(this.failure, text);
    this.failure.hidden = text === "";
  }
}
