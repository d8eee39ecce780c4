// The input of a job as JSON of any shape, kept while the page is open.

import { h, newId } from "./dom.js";

const KEPT = "worker-rkllm.input";
const EMPTY = "{}";

export class JsonInput {
  constructor() {
    const id = newId("input");
    this.text = h("textarea", { id, class: "prompt grows", rows: 8, spellcheck: "false" });
    this.text.value = sessionStorage.getItem(KEPT) ?? EMPTY;
    this.text.addEventListener("input", () => this.text.removeAttribute("aria-invalid"));
    this.element = h("div", { class: "stack tight", hidden: true }, h("label", { for: id }, "Input as JSON"), this.text);
  }

  /** The value of the JSON. Throws an Error that says where it is wrong. */
  get value() {
    let value;
    try {
      value = JSON.parse(this.text.value);
    } catch (error) {
      this.text.setAttribute("aria-invalid", "true");
      throw new Error(`The input is not JSON: ${error.message}`);
    }
    this.text.removeAttribute("aria-invalid");
    sessionStorage.setItem(KEPT, this.text.value);
    return value;
  }

  /** Begin with an example, unless something was sent or typed before. */
  offer(example) {
    if (sessionStorage.getItem(KEPT) === null && this.text.value === EMPTY) this.value = example;
  }

  set value(value) {
    this.text.removeAttribute("aria-invalid");
    this.text.value = JSON.stringify(value, null, 2);
  }
}
