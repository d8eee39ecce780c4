// The turns of a chat, to be written and put in order.

import { fill, h, newId } from "./dom.js";

const ROLES = ["system", "user", "assistant"];

export class Messages {
  constructor() {
    this.list = h("ol", { class: "turns" });
    this.element = h(
      "div",
      { class: "stack tight" },
      this.list,
      h("button", { type: "button", class: "button small", onclick: () => this.#append("user", "", true) }, "Add a message"),
    );
    this.value = [{ role: "user", content: "" }];
  }

  /** @returns {{role: string, content: string}[]} */
  get value() {
    return this.turns.map(({ role, content }) => ({ role: role.value, content: content.value }));
  }

  set value(messages) {
    this.turns = [];
    fill(this.list);
    for (const { role, content } of messages) this.#append(role, typeof content === "string" ? content : JSON.stringify(content));
  }

  /** Go on with what was answered. */
  goOn(answer) {
    this.#append("assistant", answer);
    this.#append("user", "", true);
  }

  #append(role, text, focus = false) {
    const id = newId("turn");
    const roles = ROLES.includes(role) ? ROLES : [...ROLES, role];
    const chosen = h("select", { "aria-label": "Role", class: "role" }, roles.map((each) => h("option", { value: each, selected: each === role }, each)));
    const content = h("textarea", { id, rows: 2, class: "grows", "aria-label": "Content" });
    content.value = text;
    const turn = { role: chosen, content };
    const row = h(
      "li",
      { class: "turn" },
      h("div", { class: "turn-head" }, chosen, h("button", { type: "button", class: "link", onclick: () => remove() }, "Remove")),
      content,
    );
    const remove = () => {
      this.turns = this.turns.filter((each) => each !== turn);
      row.remove();
      if (this.turns.length === 0) this.#append("user", "", true);
    };
    this.turns.push(turn);
    this.list.append(row);
    if (focus) content.focus();
  }
}
