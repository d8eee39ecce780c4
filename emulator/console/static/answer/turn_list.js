// The turns of a chat before its answer, to be read.

import { CallsView } from "./calls_view.js";
import { fill, h } from "../page/dom.js";
import { plural } from "../page/format.js";
import { callsOf } from "./outcome.js";
import { valueNodes } from "../page/value_view.js";

// Of a longer chat the turns before these are folded.
const SHOWN_TURNS = 4;

export class TurnList {
  constructor() {
    this.element = h("div", { class: "stack tight", hidden: true });
  }

  /** Show the turns that were sent; nothing for a request without any. @param {import("./turns.js").Turn[]} turns */
  show(turns) {
    this.element.hidden = turns.length === 0;
    const earlier = turns.slice(0, -SHOWN_TURNS);
    fill(
      this.element,
      earlier.length === 0 ? null : h("details", {}, h("summary", {}, `${plural(earlier.length, "earlier message")}`), list(earlier, "Earlier messages")),
      list(turns.slice(-SHOWN_TURNS), "Messages"),
    );
  }
}

function list(turns, label) {
  return h("ol", { class: "turns", "aria-label": label }, turns.map(drawn));
}

function drawn({ role, content, tool_calls: calls, tool_call_id: id }) {
  const view = new CallsView();
  view.show(callsOf(calls));
  const isText = content !== null && content !== undefined && content !== "";
  return h(
    "li",
    { class: `said said-${role === "user" ? "user" : "other"}` },
    h("p", { class: "small muted" }, role, id ? ` for ${id}` : ""),
    isText ? valueNodes(content) : null,
    calls ? view.element : null,
  );
}
