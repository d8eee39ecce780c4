// The faults that the next request asks for with `x-fault`, on a server that allows it.

import { fill, h, newId } from "../page/dom.js";

const GROUPS = {
  replacement: "Instead of a response",
  response: "Any response",
  json: "JSON responses",
  stream: "Streams",
};

export class FaultChoice {
  constructor() {
    const [id, addId, noteId] = [newId("faults"), newId("add-fault"), newId("note")];
    this.faults = [];
    this.isStreamed = false;
    this.text = h("input", { type: "text", id, autocomplete: "off", spellcheck: "false", placeholder: "none", maxlength: "1000", "aria-describedby": noteId, oninput: () => this.#explain() });
    this.add = h("select", { id: addId, onchange: () => this.#add() });
    this.note = h("ul", { id: noteId, class: "small muted" });
    this.element = h(
      "div",
      { class: "stack tight", hidden: true },
      h("div", { class: "row between" }, h("label", { for: id }, "Fault of the next request"), h("label", { for: addId, class: "unseen" }, "Add a fault"), this.add),
      this.text,
      this.note,
    );
  }

  /** Offer the faults of the server; null if it allows none. @param {any[]|null} faults */
  describe(faults) {
    this.faults = faults ?? [];
    this.element.hidden = faults === null;
    const groups = Object.entries(GROUPS).map(([group, label]) => {
      const options = this.faults.filter((fault) => fault.group === group).map(({ name, example }) => h("option", { value: example }, name));
      return h("optgroup", { label }, options);
    });
    fill(this.add, h("option", { value: "" }, "Add a fault…"), groups);
    this.#explain();
  }

  /** Take whether the request is answered by a stream. */
  setStreamed(isStreamed) {
    this.isStreamed = isStreamed;
    this.#explain();
  }

  /** The value of `x-fault`; "" for no fault. Throws an Error if it cannot be sent. */
  get value() {
    const text = this.element.hidden ? "" : this.text.value.trim();
    if (/[^ -~]/.test(text)) throw new Error("A fault has letters, digits and punctuation of ASCII only.");
    return text;
  }

  #add() {
    const { value } = this.text;
    this.text.value = value.trim() === "" ? this.add.value : `${value}; ${this.add.value}`;
    this.add.value = "";
    this.#explain();
  }

  #explain() {
    const names = this.text.value.split(/[,;]/).map((each) => each.split("=")[0].trim());
    const used = this.faults.filter(({ name }) => names.includes(name));
    fill(this.note, used.map((fault) => h("li", {}, `${fault.name}: ${fault.meaning.replaceAll("`", "")} `, this.#hasEffect(fault) ? null : h("strong", {}, this.#reason()))));
  }

  #hasEffect({ group }) {
    return group !== (this.isStreamed ? "json" : "stream");
  }

  #reason() {
    return this.isStreamed ? "No effect: this request gets a stream." : "No effect: this request gets JSON.";
  }
}
