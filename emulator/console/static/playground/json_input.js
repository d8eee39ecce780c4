// The input of a job as JSON of any shape, kept for each endpoint while the page is open.

import { fill, h, newId } from "../page/dom.js";

const KEPT = "worker-rkllm.input";
const EMPTY = "{}";
const MAX_NAME_CHARS = 80;

export class JsonInput {
  constructor() {
    const id = newId("input");
    this.text = h("textarea", { id, class: "prompt grows", rows: 8, spellcheck: "false" });
    this.text.value = EMPTY;
    /** @type {string|null} */
    this.endpoint = null;
    /** What was in the box for another endpoint, by endpoint. @type {Map<string, string>} */
    this.others = new Map();
    this.text.addEventListener("input", () => this.text.removeAttribute("aria-invalid"));
    const exampleId = newId("example");
    this.examples = h("select", { id: exampleId, onchange: () => this.#useExample() });
    this.exampleRow = h("div", { class: "row", hidden: true }, h("label", { for: exampleId, class: "small muted" }, "Start with"), this.examples);
    this.element = h("div", { class: "stack tight", hidden: true }, this.exampleRow, h("label", { for: id }, "Input as JSON"), this.text);
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
    sessionStorage.setItem(this.#key, this.text.value);
    return value;
  }

  get #key() {
    return `${KEPT}.${this.endpoint}`;
  }

  /**
   * Offer the examples of an endpoint. Show what was typed for it or sent to it before, or else the
   * first example.
   * @param {string} endpoint @param {{file: string, name: string, input: any}[]} examples
   */
  select(endpoint, examples) {
    this.inputs = examples.map(({ input }) => input);
    const names = examples.map(({ file, name }) => (file === "tests.json" ? `${file}: ${name}` : file));
    const options = ["an example…", ...names].map((name, at) => h("option", { value: at === 0 ? "" : String(at - 1) }, name.slice(0, MAX_NAME_CHARS)));
    fill(this.examples, options);
    this.exampleRow.hidden = examples.length === 0;
    if (endpoint === this.endpoint) return;
    if (this.endpoint !== null) this.others.set(this.endpoint, this.text.value);
    // What was typed before the form was loaded.
    const early = this.endpoint === null && this.text.value !== EMPTY ? this.text.value : undefined;
    this.endpoint = endpoint;
    const text = early ?? this.others.get(endpoint) ?? sessionStorage.getItem(this.#key);
    if (text !== null) this.text.value = text;
    else this.value = examples.length > 0 ? examples[0].input : {};
  }

  #useExample() {
    if (this.examples.value !== "") this.value = this.inputs[Number(this.examples.value)];
  }

  set value(value) {
    this.text.removeAttribute("aria-invalid");
    this.text.value = JSON.stringify(value, null, 2);
  }
}
