// The jobs of an endpoint, live: those that wait, run, have ended; one of them beside the list.

import { ask, told } from "../server/api.js";
import { Choice } from "../page/choice.js";
import { fill, h, newId, say } from "../page/dom.js";
import { ago, count, duration } from "../page/format.js";
import { statusBadge } from "./job_status.js";
import { JobView } from "./job_view.js";
import { onKey } from "../server/keys.js";
import { notice } from "../page/notices.js";
import { Polling } from "../page/polling.js";

const EVERY_MS = 1000;
/** @type {{value: string, name: string, states: string[]|null}[]} The states that each choice stands for; null for all. */
const FILTERS = [
  { value: "", name: "All", states: null },
  { value: "IN_QUEUE", name: "Queued", states: ["IN_QUEUE"] },
  { value: "IN_PROGRESS", name: "Running", states: ["IN_PROGRESS"] },
  { value: "COMPLETED", name: "Done", states: ["COMPLETED"] },
  { value: "FAILED", name: "Failed", states: ["FAILED"] },
  { value: "TIMED_OUT", name: "Timed out", states: ["TIMED_OUT"] },
  { value: "CANCELLED", name: "Cancelled", states: ["CANCELLED"] },
];

export class JobsScreen {
  title = "Jobs";

  constructor() {
    this.polling = new Polling(() => this.#look(), EVERY_MS);
    const endpointId = newId("endpoint");
    this.filter = new Choice("State", FILTERS.map(({ value, name }) => [value, name]), () => this.polling.now());
    this.endpoint = h("select", { id: endpointId, onchange: () => this.polling.now() });
    this.workers = h("span", { class: "small muted" });
    this.purge = h("button", { type: "button", class: "button small", hidden: true, onclick: () => this.#purge() }, "Cancel queued jobs");
    this.reset = h("button", { type: "button", class: "button small danger", hidden: true, onclick: () => this.#reset() }, "Empty");
    this.rows = h("tbody");
    this.table = h(
      "table",
      { class: "list" },
      h("caption", { class: "unseen" }, "Jobs, newest first"),
      h("thead", {}, h("tr", {}, ["Job", "State", "Created", "Queue time", "Run time"].map((name) => h("th", { scope: "col" }, name)))),
      this.rows,
    );
    this.empty = h(
      "div",
      { class: "empty", hidden: true },
      h("p", { class: "empty-title" }, "No jobs here"),
      h("p", { class: "muted" }, "Jobs sent from ", h("a", { href: "#/playground" }, "the playground"), " or with POST /run appear here."),
    );
    this.wrong = h("p", { class: "form-error", role: "alert", hidden: true });
    this.view = new JobView(() => this.polling.now());
    this.view.element.hidden = true;
    /** @type {Map<string, any>} */
    this.known = new Map();
    this.element = h(
      "div",
      { class: "split" },
      h(
        "section",
        { class: "card", "aria-label": "Jobs" },
        h("div", { class: "row between" }, h("h1", {}, "Jobs"), h("div", { class: "row" }, this.workers, h("label", { for: endpointId, class: "small muted" }, "Endpoint"), this.endpoint)),
        h("div", { class: "row between" }, this.filter.element, h("div", { class: "row" }, this.purge, this.reset)),
        this.wrong,
        h("div", { class: "scrolls" }, this.table),
        this.empty,
      ),
      this.view.element,
    );
    onKey(() => this.polling.now());
  }

  show([id]) {
    this.polling.start();
    this.element.classList.toggle("one", id !== undefined);
    this.view.element.hidden = id === undefined;
    if (id === undefined) this.view.leave();
    else this.view.show(id);
    this.chosen = id;
    this.#mark();
  }

  hide() {
    this.polling.stop();
    this.view.leave();
  }

  async #look() {
    const query = new URLSearchParams();
    if (this.endpoint.value) query.set("endpoint", this.endpoint.value);
    if (this.filter.value) query.set("status", this.filter.value);
    try {
      // The first time somebody has come to see it; after that it is in nobody's way.
      const listed = await ask(`/console/jobs?${query}`, { background: this.asked === true });
      this.asked = true;
      this.#draw(listed);
      this.wrong.hidden = true;
    } catch (error) {
      this.asked = true;
      say(this.wrong, told(error));
      this.wrong.hidden = false;
    }
  }

  #draw({ endpoints, endpoint, counts, workers, jobs }) {
    if ([...this.endpoint.options].map((each) => each.value).join() !== endpoints.join()) {
      fill(this.endpoint, endpoints.map((each) => h("option", { value: each, selected: each === endpoint }, each)));
    }
    say(this.workers, `${count(workers.running)} busy, ${count(workers.idle)} idle`);
    FILTERS.forEach(({ value, name, states }, at) => {
      const label = this.filter.element.querySelectorAll("label")[at];
      const total = states === null ? null : states.reduce((sum, each) => sum + counts[each], 0);
      say(label, total ? `${name} ${count(total)}` : name);
      label.hidden = this.filter.inputs[at].hidden = total === 0 && at > 4 && this.filter.value !== value;
    });
    this.purge.hidden = counts.IN_QUEUE === 0;
    this.reset.hidden = Object.values(counts).every((each) => each === 0);
    const before = this.known;
    this.known = new Map();
    jobs.forEach((job, at) => {
      const row = before.get(job.id) ?? makeRow(job);
      row.show(job);
      this.known.set(job.id, row);
      if (this.rows.children[at] !== row.element) this.rows.insertBefore(row.element, this.rows.children[at] ?? null);
    });
    while (this.rows.children.length > jobs.length) this.rows.lastChild.remove();
    this.table.hidden = jobs.length === 0;
    this.empty.hidden = jobs.length > 0;
    this.#mark();
  }

  #mark() {
    for (const [id, row] of this.known) row.element.classList.toggle("chosen", id === this.chosen);
  }

  #purge() {
    return this.#remove("purge-queue", (removed) => `${count(removed)} cancelled.`);
  }

  /** Cancel and remove all jobs of the endpoint, after a question. */
  #reset() {
    const question = `Cancel all jobs of the endpoint ${this.endpoint.value} and remove their results?`;
    if (confirm(question)) return this.#remove("reset", (removed) => `${count(removed)} removed.`);
  }

  async #remove(operation, sentence) {
    try {
      const { removed } = await ask(`/v2/${encodeURIComponent(this.endpoint.value)}/${operation}`, { method: "POST" });
      notice(sentence(removed));
      this.polling.now();
    } catch (error) {
      notice(told(error), "bad");
    }
  }
}

function makeRow(job) {
  const badge = statusBadge();
  const [sent, waited, ran] = ["created", "queued for", "ran for"].map((name) => h("td", { class: "number", "data-name": name }));
  const link = h("a", { href: `#/jobs/${encodeURIComponent(job.id)}` }, job.preview || "(a long input)");
  const element = h(
    "tr",
    {},
    h("th", { scope: "row" }, link, h("code", { class: "small muted" }, job.id.slice(0, 13))),
    h("td", {}, badge),
    sent,
    waited,
    ran,
  );
  return {
    element,
    show(now) {
      badge.show(now.status);
      say(sent, ago(now.createdAt));
      say(waited, duration((now.startedAt ?? now.endedAt ?? Date.now()) - now.queuedAt));
      say(ran, now.startedAt === null ? "–" : duration((now.endedAt ?? Date.now()) - now.startedAt));
    },
  };
}
