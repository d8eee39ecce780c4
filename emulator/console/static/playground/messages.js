// The turns of a chat, to be written and put in order.

import { CallsView } from "../answer/calls_view.js";
import { fill, h, newId } from "../page/dom.js";
import { callsOf } from "../answer/outcome.js";

const ROLES = ["system", "user", "assistant"];

export class Messages {
  constructor() {
    this.list = h("ol", { class: "turns" });
    this.element = h(
      "div",
      { class: "stack tight" },
      this.list,
      h("button", { type: "button", class: "button small", onclick: () => this.#append({ role: "user", content: "" }, true) }, "Add a message"),
    );
    this.value = [{ role: "user", content: "" }];
  }

  /** The turns. Throws an Error if a content that was JSON no longer is. @returns {import("../answer/turns.js").Turn[]} */
  get value() {
    return this.turns.map(({ role, content, isJson, rest }) => ({ role: role.value, content: isJson ? read(content.value) : content.value, ...rest }));
  }

  set value(messages) {
    this.turns = [];
    fill(this.list);
    for (const message of messages) this.#append(message);
  }

  #append({ role, content: value, ...rest }, focus = false) {
    const roles = ROLES.includes(role) ? ROLES : [...ROLES, role];
    const chosen = h("select", { "aria-label": "Role", class: "role" }, roles.map((each) => h("option", { value: each, selected: each === role }, each)));
    const content = h("textarea", { id: newId("turn"), rows: 2, class: "grows", "aria-label": "Content" });
    // Such as the parts of a message with a picture, or the nothing beside a tool call.
    const isJson = typeof value !== "string";
    content.value = !isJson ? value : value === null || value === undefined ? "" : JSON.stringify(value);
    const turn = { role: chosen, content, isJson, rest };
    const calls = new CallsView();
    calls.show(callsOf(rest.tool_calls));
    const row = h(
      "li",
      { class: "turn" },
      h("div", { class: "turn-head" }, chosen, rest.tool_call_id ? h("span", { class: "small muted" }, rest.tool_call_id) : null, h("button", { type: "button", class: "link", onclick: () => remove() }, "Remove")),
      content,
      rest.tool_calls ? calls.element : null,
    );
    const remove = () => {
      this.turns = this.turns.filter((each) => each !== turn);
      row.remove();
      if (this.turns.length === 0) this.#append({ role: "user", content: "" }, true);
    };
    this.turns.push(turn);
    this.list.append(row);
    if (focus) content.focus();
  }
}

function read(text) {
  if (text.trim() === "") return null;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`A message's content is not JSON: ${error.message}`);
  }
}
