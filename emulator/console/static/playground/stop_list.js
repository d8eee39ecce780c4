// Stop sequences as a list of words that can be taken away again.

import { fill, h } from "../page/dom.js";

export class StopList {
  /** @param {string} id of its input @param {number} [most] */
  constructor(id, most = 16) {
    this.most = most;
    /** @type {string[]} */
    this.list = [];
    this.input = h("input", { id, type: "text", placeholder: "Type a sequence, then Enter; \\n is a newline", spellcheck: "false" });
    this.chips = h("ul", { class: "chips" });
    this.element = h("div", { class: "stops" }, this.chips, this.input);
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.metaKey && !event.ctrlKey) {
        event.preventDefault();
        this.#take();
      } else if (event.key === "Backspace" && this.input.value === "" && this.list.length) {
        this.values = this.list.slice(0, -1);
      }
    });
    this.input.addEventListener("change", () => this.#take());
  }

  get values() {
    return this.list;
  }

  set values(values) {
    this.list = values;
    this.#draw();
  }

  #take() {
    if (this.list.length >= this.most) return;
    const text = unescaped(this.input.value);
    this.input.value = "";
    if (text === "" || this.list.includes(text)) return;
    this.values = [...this.list, text];
    this.element.dispatchEvent(new Event("change", { bubbles: true }));
  }

  #draw() {
    fill(
      this.chips,
      this.list.map((text) =>
        h(
          "li",
          { class: "chip" },
          h("code", {}, JSON.stringify(text).slice(1, -1)),
          h("button", { type: "button", "aria-label": `Remove the stop sequence ${JSON.stringify(text)}`, onclick: () => this.#remove(text) }, "×"),
        ),
      ),
    );
    this.chips.hidden = this.list.length === 0;
  }

  #remove(text) {
    this.values = this.list.filter((each) => each !== text);
    this.input.focus();
    this.element.dispatchEvent(new Event("change", { bubbles: true }));
  }
}

/** What is meant by \n and \t, which no one-line input takes. */
function unescaped(text) {
  const known = { n: "\n", t: "\t", r: "\r", "\\": "\\" };
  return text.replace(/\\([ntr\\])/g, (_, letter) => known[letter]);
}
