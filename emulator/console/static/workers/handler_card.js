// The state of the user's handler: its file and Python, or its image and what runs it, and why the newest code did not start.

import { h, say } from "../page/dom.js";
import { announce } from "../page/notices.js";

/** Each state with its word, the colour of its badge, and what it means for jobs. */
export const HANDLER_STATES = {
  starting: ["Starting", "waiting", "Jobs wait until the handler is ready."],
  idle: ["Idle", "good", "No worker runs; the next job starts one."],
  ready: ["Ready", "good", "The handler takes jobs."],
  failed: ["Failed", "bad", "No worker runs. Jobs fail with this reason until the handler starts."],
  outdated: ["Outdated", "waiting", "The newest code did not start, so the code before the change still runs."],
};

export class HandlerCard {
  constructor() {
    this.badge = h("span", { class: "badge" });
    this.meaning = h("p", { class: "muted" });
    this.programKind = h("dt", {});
    this.program = h("dd", {});
    this.runnerKind = h("dt", {});
    this.runner = h("dd", {});
    this.reason = h("p", { class: "form-error", role: "alert", hidden: true });
    this.output = h("pre", { class: "log", role: "region", "aria-label": "Output of the handler", tabindex: "0", hidden: true });
    this.element = h(
      "section",
      { class: "card stack tight", "aria-label": "Handler", hidden: true },
      h("div", { class: "row between" }, h("h2", {}, "Handler"), this.badge),
      this.meaning,
      this.reason,
      this.output,
      h("dl", { class: "plain-facts" }, h("div", {}, this.programKind, this.program), h("div", {}, this.runnerKind, this.runner)),
    );
    this.state = null;
  }

  /** Show the `handler` of /health; hide the card on a server without one. */
  show(handler) {
    this.element.hidden = !handler;
    if (!handler) return;
    const { state, file, image, python, failure } = handler;
    const [word, kind, meaning] = HANDLER_STATES[state] ?? [state, "plain", ""];
    this.badge.className = `badge ${kind}`;
    say(this.badge, word);
    say(this.meaning, meaning);
    say(this.programKind, image ? "Image" : "File");
    say(this.program, image ?? file ?? "");
    say(this.runnerKind, image ? "Runs in" : "Python");
    say(this.runner, python ?? "");
    say(this.reason, failure?.reason ?? "");
    this.reason.hidden = !failure;
    say(this.output, failure?.output ?? "");
    this.output.hidden = !failure?.output;
    if (this.state !== null && this.state !== state && this.element.isConnected) announce(`Handler: ${word}`);
    this.state = state;
  }
}
