// The workers of an endpoint with their status and uptime, and the log of one of them.

import { ask, told } from "../server/api.js";
import { fill, h, newId, say } from "../page/dom.js";
import { duration } from "../page/format.js";
import { HandlerCard } from "./handler_card.js";
import { onKey } from "../server/keys.js";
import { Polling } from "../page/polling.js";
import { onHealth } from "../server/status.js";
import { addEnded } from "./worker_list.js";
import { WorkerView } from "./worker_view.js";

const POLL_INTERVAL_MS = 2000;
const STATUSES = {
  RUNNING: ["Running", "busy"],
  IDLE: ["Idle", "good"],
  INITIALIZING: ["Starting", "waiting"],
  THROTTLED: ["Throttled", "waiting"],
  UNHEALTHY: ["Unhealthy", "bad"],
  ENDED: ["Ended", "plain"],
};

export class WorkersScreen {
  title = "Workers";

  constructor() {
    this.polling = new Polling(() => this.#refresh(), POLL_INTERVAL_MS);
    const endpointId = newId("endpoint");
    this.endpoint = h("select", { id: endpointId, onchange: () => this.#changeEndpoint() });
    this.rows = h("tbody");
    this.table = h(
      "table",
      { class: "list" },
      h("caption", { class: "unseen" }, "Workers"),
      h("thead", {}, h("tr", {}, ["Worker", "Status", "Uptime"].map((name) => h("th", { scope: "col" }, name)))),
      this.rows,
    );
    this.empty = h("p", { class: "muted", hidden: true }, "This endpoint has no workers.");
    this.wrong = h("p", { class: "form-error", role: "alert", hidden: true });
    this.handler = new HandlerCard();
    this.view = new WorkerView();
    this.element = h(
      "div",
      { class: "split" },
      h(
        "section",
        { "aria-label": "Workers" },
        h(
          "div",
          { class: "card stack" },
          h("div", { class: "row between" }, h("h1", {}, "Workers"), h("div", { class: "row" }, h("label", { for: endpointId, class: "small muted" }, "Endpoint"), this.endpoint)),
          this.wrong,
          h("div", { class: "scrolls" }, this.table),
          this.empty,
        ),
        this.handler.element,
      ),
      this.view.element,
    );
    this.workers = [];
    this.known = new Map();
    this.isAsked = false;
    onHealth((health) => {
      this.health = health;
      this.#showHandler();
    });
    onKey(() => this.polling.now());
  }

  show([endpoint, worker, job]) {
    const hasLog = worker !== undefined;
    this.element.classList.toggle("one", hasLog);
    this.view.element.hidden = !hasLog;
    this.chosen = worker;
    // Endpoints that have got jobs since the last visit are added.
    this.hasEndpoints = false;
    if (hasLog) {
      if (this.endpoint.value !== endpoint) this.#selectEndpoint(endpoint);
      this.view.show(endpoint, worker, job);
    } else this.view.leave();
    this.#mark();
    this.polling.start();
  }

  hide() {
    this.polling.stop();
    this.view.leave();
  }

  /** Show the handler of the selected endpoint. */
  #showHandler() {
    const { handlers = [] } = this.health ?? {};
    // Without a key, a server that requires one sends no names.
    const isNamed = this.endpoint.value !== "" && handlers.some(({ endpoint }) => endpoint);
    this.handler.show(isNamed ? handlers.find(({ endpoint }) => endpoint === this.endpoint.value) : handlers[0]);
  }

  #selectEndpoint(name) {
    if (![...this.endpoint.options].some((each) => each.value === name)) this.endpoint.append(h("option", { value: name }, name));
    this.endpoint.value = name;
    this.workers = [];
    this.#showHandler();
  }

  #changeEndpoint() {
    this.workers = [];
    this.#showHandler();
    location.hash = "#/workers";
    this.polling.now();
  }

  async #refresh() {
    const background = this.isAsked;
    this.isAsked = true;
    try {
      if (!this.hasEndpoints) await this.#loadEndpoints(background);
      const endpoint = this.endpoint.value;
      const { workers } = await ask(`/v2/serverless/${encodeURIComponent(endpoint)}/workers`, { background });
      // Another endpoint may have been selected during the request.
      if (endpoint === this.endpoint.value) this.#draw(endpoint, workers);
      this.wrong.hidden = true;
    } catch (error) {
      say(this.wrong, told(error));
      this.wrong.hidden = false;
    }
  }

  async #loadEndpoints(background) {
    const { endpoint, endpoints } = await ask("/console/jobs", { background });
    const selected = this.endpoint.value || endpoint;
    const names = [...new Set([...endpoints, selected])].sort();
    fill(this.endpoint, names.map((each) => h("option", { value: each, selected: each === selected }, each)));
    this.hasEndpoints = true;
  }

  #draw(endpoint, listed) {
    this.workers = addEnded(this.workers, listed);
    const before = this.known;
    this.known = new Map();
    this.workers.forEach((worker, at) => {
      const key = `${endpoint}/${worker.id}`;
      const row = before.get(key) ?? makeRow(endpoint, worker.id);
      row.show(worker);
      this.known.set(key, row);
      if (this.rows.children[at] !== row.element) this.rows.insertBefore(row.element, this.rows.children[at] ?? null);
    });
    while (this.rows.children.length > this.workers.length) this.rows.lastChild.remove();
    this.table.hidden = this.workers.length === 0;
    this.empty.hidden = this.workers.length > 0;
    this.#mark();
  }

  #mark() {
    const chosen = this.chosen === undefined ? null : `${this.endpoint.value}/${this.chosen}`;
    for (const [key, row] of this.known) row.element.classList.toggle("chosen", key === chosen);
  }
}

function makeRow(endpoint, id) {
  const badge = h("span", { class: "badge" });
  const uptime = h("td", { class: "number", "data-name": "uptime" });
  const link = h("a", { href: `#/workers/${encodeURIComponent(endpoint)}/${encodeURIComponent(id)}` }, id);
  const stale = h("span", { class: "small muted", hidden: true }, "older code");
  const element = h("tr", {}, h("th", { scope: "row" }, link, stale), h("td", {}, badge), uptime);
  return {
    element,
    show({ status, isStale, startedAt, uptimeSeconds }) {
      const [word, kind] = STATUSES[status] ?? [status, "plain"];
      badge.className = `badge ${kind}`;
      say(badge, word);
      stale.hidden = !isStale;
      say(uptime, startedAt === null ? "–" : uptimeSeconds < 60 ? `${uptimeSeconds} s` : duration(uptimeSeconds * 1000));
    },
  };
}
