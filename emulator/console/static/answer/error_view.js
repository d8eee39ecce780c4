// The error of a failed job as a person reads it: what happened, where, and on which worker.

import { fill, h, say } from "../page/dom.js";
import { count } from "../page/format.js";
import { MAX_HEADLINE_CHARS, readJobError, tracebackLines } from "../jobs/job_error.js";
import { copy } from "../page/notices.js";

export class ErrorView {
  constructor() {
    this.error = "";
    this.headline = h("p", { class: "form-error", role: "alert", hidden: true });
    this.lines = h("code");
    this.traceback = h("pre", { class: "log traceback", role: "region", "aria-label": "Traceback", tabindex: "0" }, this.lines);
    this.facts = h("p", { class: "small muted" });
    const copyAll = h("button", { type: "button", class: "button small", onclick: () => copy(this.whole, "Error") }, "Copy");
    this.details = h("div", { class: "stack tight", hidden: true }, this.traceback, h("div", { class: "row between" }, this.facts, copyAll));
    this.element = h("div", { class: "stack tight", hidden: true }, this.headline, this.details);
  }

  /** Show an error; "" is none. */
  show(error) {
    if (error === this.error) return;
    this.error = error;
    this.element.hidden = this.headline.hidden = error === "";
    const { headline, traceback, facts } = readJobError(error);
    const isCut = headline.length > MAX_HEADLINE_CHARS;
    const hidden = isCut ? `… (${count(headline.length - MAX_HEADLINE_CHARS)} more characters)` : "";
    say(this.headline, `${headline.slice(0, MAX_HEADLINE_CHARS)}${hidden}`);
    this.whole = traceback === "" ? headline : traceback;
    this.details.hidden = traceback === "" && facts.length === 0 && !isCut;
    this.traceback.hidden = traceback === "";
    const own = (line) => h("strong", { class: "own" }, line);
    fill(this.lines, tracebackLines(traceback).map(({ line, isOwn }) => [isOwn ? own(line) : line, "\n"]));
    say(this.facts, facts.map(([name, value]) => `${name} ${value.slice(0, 200)}`).join(" · "));
  }
}
