// A job's life as a bar and its moments: how long it waited, was silent, spoke.

import { fill, h } from "../page/dom.js";
import { clock, duration } from "../page/format.js";

const PARTS = [
  ["waiting", "Queued", "queuedAt", "startedAt"],
  ["prefill", "Time to first token", "startedAt", "firstTokenAt"],
  ["saying", "Generating", "firstTokenAt", "endedAt"],
];
const ENDS = {
  COMPLETED: "Finished",
  FAILED: "Failed",
  CANCELLED: "Cancelled",
  TIMED_OUT: "Timed out",
};
const WEBHOOKS = { none: null, due: "Webhook pending", done: "Webhook done" };

export class Timeline {
  constructor() {
    this.bar = h("div", { class: "life", "aria-hidden": "true" });
    this.moments = h("ol", { class: "moments" });
    this.element = h("div", { class: "stack tight" }, this.bar, this.moments);
  }

  /** @param {any} job its summary @param {boolean} isPlain whether no model answers it */
  show(job, isPlain) {
    this.#drawBar(job, isPlain);
    const end = job.endedAt === null ? null : ENDS[job.status];
    const rows = [
      job.createdAt < job.queuedAt ? ["Created", job.createdAt, null] : null,
      ["Queued", job.queuedAt, job.createdAt < job.queuedAt ? job.createdAt : null],
      ["Started", job.startedAt, job.queuedAt],
      isPlain ? null : ["First token", job.firstTokenAt, job.startedAt],
      [end ?? "Finished", job.endedAt, job.firstTokenAt ?? job.startedAt ?? job.queuedAt],
    ];
    const webhook = WEBHOOKS[job.webhook];
    fill(
      this.moments,
      rows.filter((row) => row !== null).map(([name, at, before]) => this.#moment(name, at, before, job)),
      webhook === null ? null : h("li", { class: job.webhook === "done" ? "moment" : "moment open" }, h("span", {}, webhook)),
    );
  }

  #moment(name, at, before, job) {
    // Of what is over it will not come any more.
    const missed = at === null && job.endedAt !== null;
    const state = at !== null ? "moment" : missed ? "moment missed" : "moment open";
    return h(
      "li",
      { class: state },
      h("span", {}, name),
      h("span", { class: "when" }, at === null ? "–" : clock(at, true)),
      h("span", { class: "muted" }, at === null || before === null ? "" : after(at - before)),
    );
  }

  #drawBar(job, isPlain) {
    const now = job.endedAt ?? Date.now();
    const whole = Math.max(1, now - job.queuedAt);
    fill(this.bar);
    for (const [kind, name, from, to] of PARTS) {
      let start = job[from];
      if (kind === "saying" && start === null) start = job.startedAt;
      if (kind === "prefill" && job.firstTokenAt === null) continue;
      if (start === null) continue;
      const span = Math.max(0, (job[to] ?? now) - start);
      const part = h("span", { class: `life-${kind}`, title: `${isPlain && kind === "saying" ? "Running" : name}: ${duration(span)}` });
      part.style.flexGrow = String(span / whole);
      this.bar.append(part);
    }
  }
}

function after(spanMs) {
  return spanMs < 1 ? "immediately" : `+${duration(spanMs)}`;
}
