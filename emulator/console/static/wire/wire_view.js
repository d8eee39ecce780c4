// The exchanges of a request as they were on the wire, part by part while they arrive.

import { fill, h, say } from "../page/dom.js";
import { bytes } from "../page/format.js";
import { copy } from "../page/notices.js";
import { leftOutOf, moment, more, requestBody, requestHead, responseHead, stateOf, textOf, transcript } from "./wire_text.js";

// A scroll position this close to the end follows new parts.
const END_PX = 40;

export class WireView {
  constructor() {
    /** @type {import("../playground/run.js").Run|null} */
    this.run = null;
    /** @type {ExchangeView[]} */
    this.views = [];
    this.none = h("p", { class: "small muted" }, "Nothing was sent yet.");
    this.copy = h("button", { type: "button", class: "button small", hidden: true, onclick: () => copy(this.#transcript(), "The exchange") }, "Copy");
    this.list = h("div", { class: "stack" });
    this.failure = h("p", { class: "form-error", hidden: true });
    this.element = h("div", { class: "stack wire" }, h("div", { class: "row between" }, this.none, this.copy), this.list, this.failure);
  }

  /** Show another run. @param {import("../playground/run.js").Run} run */
  show(run) {
    this.run = run;
    this.views = [];
    fill(this.list);
  }

  /** Draw what is new. */
  draw() {
    if (this.run === null) return;
    const { wire, error } = this.run;
    say(this.none, "Times are counted from sending the request. The browser adds headers of its own.");
    this.copy.hidden = false;
    for (const exchange of wire.exchanges.slice(this.views.length)) {
      const view = new ExchangeView(exchange);
      this.views.push(view);
      this.list.append(view.element);
    }
    for (const view of this.views) view.draw();
    // A broken connection is named at its exchange.
    this.failure.hidden = error === null || wire.exchanges.some(({ end }) => end?.reason === error.message);
    say(this.failure, error?.message ?? "");
  }

  #transcript() {
    const { wire, error } = this.run;
    return [...wire.exchanges.map(transcript), ...(error === null ? [] : [`${error.message}\n`])].join("\n");
  }
}

class ExchangeView {
  /** @param {import("./wire_log.js").Exchange} exchange */
  constructor(exchange) {
    this.exchange = exchange;
    this.drawn = 0;
    const name = `${exchange.method} ${exchange.path}`;
    this.status = h("span", { class: "badge" });
    this.head = h("pre", {});
    this.headMs = h("span", { class: "small muted" });
    this.response = h("details", { hidden: true }, h("summary", {}, "Response headers ", this.headMs), this.head);
    this.cut = h("p", { class: "small muted" });
    this.parts = h("ol", { class: "wire-parts" });
    this.box = h("div", { class: "wire-box", role: "region", "aria-label": `Response to ${name}`, tabindex: "0", hidden: true }, this.cut, this.parts);
    this.state = h("p", { class: "small muted" });
    const fault = exchange.headers.find(([each]) => each === "x-fault");
    this.element = h(
      "section",
      { class: "exchange", "aria-label": name },
      h("div", { class: "row between" }, h("h2", { class: "mono" }, name), this.status),
      fault && h("p", { class: "small" }, `This request asks for a fault: ${fault[1]}`),
      h("details", {}, h("summary", {}, "Request ", h("span", { class: "small muted" }, moment(exchange.sentMs))), h("pre", {}, requestHead(exchange), exchange.body && "\n\n", requestBody(exchange))),
      this.response,
      this.box,
      this.state,
    );
  }

  draw() {
    const { exchange } = this;
    const { head, end } = exchange;
    this.response.hidden = head === null;
    if (head !== null && this.status.textContent === "") {
      say(this.status, `${head.status} ${head.statusText}`.trim());
      this.status.className = `badge ${head.status < 400 ? "good" : "bad"}`;
      say(this.headMs, moment(head.ms));
      say(this.head, responseHead(head));
    }
    this.#drawParts();
    say(this.state, stateOf(exchange));
    this.state.className = end?.state === "broken" ? "small wrong" : "small muted";
  }

  #drawParts() {
    const { exchange, box } = this;
    if (exchange.partCount === this.drawn) return;
    box.hidden = false;
    // What is there already is read from its beginning.
    const isAtEnd = this.drawn > 0 && box.scrollHeight - box.scrollTop - box.clientHeight < END_PX;
    const { newest } = exchange;
    const isNew = newest.slice(Math.max(0, newest.length - (exchange.partCount - this.drawn)));
    this.drawn = exchange.partCount;
    this.parts.append(...isNew.map(partElement));
    while (this.parts.children.length > newest.length) this.parts.firstChild.remove();
    say(this.cut, leftOutOf(exchange));
    this.cut.hidden = exchange.leftOut === 0;
    if (isAtEnd) box.scrollTop = box.scrollHeight;
  }
}

function partElement(part) {
  const { text, leftOut } = textOf(part);
  const shown = text.replace(/\n+$/, "");
  // Otherwise the end of an event could not be told from an event that broke off.
  const newlines = h("span", { class: "muted" }, "\\n".repeat(text.length - shown.length));
  return h(
    "li",
    { class: "wire-part" },
    h("span", { class: "small muted number" }, moment(part.ms)),
    h("span", { class: "small muted number" }, bytes(part.bytes)),
    h("code", {}, shown, newlines, more(leftOut, "byte")),
  );
}
