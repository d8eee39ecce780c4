// The tool calls of an answer: the name of each tool, and its arguments as they arrive.

import { fill, h, say } from "../page/dom.js";
import { valueNodes } from "../page/value_view.js";

const SHOWN_CHARS = 2_000;

export class CallsView {
  constructor() {
    this.list = h("ol", { class: "calls", "aria-label": "Tool calls" });
    this.element = this.list;
    this.show([]);
  }

  /** @param {import("./model_answer.js").Call[]} calls */
  show(calls) {
    if (calls.length < this.list.children.length || calls.length === 0) {
      fill(this.list);
      /** @type {{name: Element, id: Element, content: Element, shown: string|null}[]} */
      this.rows = [];
    }
    this.element.hidden = calls.length === 0;
    calls.forEach((call, at) => this.#draw((this.rows[at] ??= this.#add()), call));
  }

  #add() {
    const row = { name: h("code"), id: h("span", { class: "small muted" }), content: h("div", { class: "stack tight" }), shown: null };
    this.list.append(h("li", { class: "call" }, h("p", { class: "row" }, h("span", { class: "small muted" }, "Calls"), row.name, row.id), row.content));
    return row;
  }

  #draw(row, call) {
    say(row.name, call.name);
    say(row.id, call.id);
    if (row.shown === call.arguments) return;
    row.shown = call.arguments;
    fill(row.content, argumentNodes(call.arguments));
  }
}

/** Return nodes for arguments: as JSON once they are complete. */
function argumentNodes(text) {
  if (text.trimEnd().endsWith("}")) {
    try {
      return valueNodes(JSON.parse(text));
    } catch {
      // A brace within arguments that are not complete.
    }
  }
  const hidden = text.length - SHOWN_CHARS;
  return h("pre", { tabindex: "0", role: "group", "aria-label": "Arguments" }, hidden > 0 ? "… " : "", text.slice(-SHOWN_CHARS));
}
