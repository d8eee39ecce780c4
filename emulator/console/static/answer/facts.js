// A few numbers in a row, each with its name.

import { h, say } from "../page/dom.js";

export class Facts {
  /** @param {Record<string, string>} facts names, and what they mean */
  constructor(facts) {
    this.values = {};
    this.element = h(
      "dl",
      { class: "facts" },
      Object.entries(facts).map(([name, meaning]) => {
        this.values[name] = h("dd", {}, "–");
        return h("div", { title: meaning }, h("dt", {}, name), this.values[name]);
      }),
    );
  }

  /** Show these facts, and hide the others. @param {Record<string, string>} values */
  show(values) {
    for (const [name, element] of Object.entries(this.values)) {
      element.parentElement.hidden = values[name] === undefined;
      say(element, values[name] ?? "–");
    }
  }
}
