// JSON to be read: laid out and coloured, long parts cut short; whole for the clipboard and a file.

import { fill, h } from "./dom.js";
import { bytes, count } from "./format.js";
import { copy, download } from "./notices.js";

const MOST_ITEMS = 40;
const MOST_CHARS = 2_000;
const MOST_DEPTH = 12;

export class JsonView {
  /** @param {string} label what it is @param {string} name of the file */
  constructor(label, name) {
    this.name = name;
    this.value = undefined;
    this.code = h("code");
    this.size = h("span", { class: "small muted" });
    this.element = h(
      "div",
      { class: "json" },
      h(
        "div",
        { class: "json-tools" },
        this.size,
        h("button", { type: "button", class: "button small", onclick: () => copy(this.#whole(), label) }, "Copy"),
        h("button", { type: "button", class: "button small", onclick: () => this.#save() }, "Download"),
      ),
      h("pre", { tabindex: "0", role: "region", "aria-label": label }, this.code),
    );
  }

  show(value) {
    this.value = value;
    const text = JSON.stringify(value) ?? "";
    this.size.textContent = bytes(new Blob([text]).size);
    fill(this.code, drawn(value, "", 0));
  }

  #whole() {
    return JSON.stringify(this.value, null, 2);
  }

  #save() {
    download(new Blob([this.#whole()], { type: "application/json" }), this.name);
  }
}

/** Nodes for a value; `margin` stands before each of its lines. */
function drawn(value, margin, depth) {
  if (value === null || typeof value === "boolean") return [token("word", String(value))];
  if (typeof value === "number") return [token("number", JSON.stringify(value))];
  if (typeof value === "string") return [token("string", cut(value))];
  const list = Array.isArray(value);
  const entries = list ? value.map((each) => [null, each]) : Object.entries(value);
  const [open, close] = list ? "[]" : "{}";
  if (entries.length === 0) return [open + close];
  if (depth > MOST_DEPTH) return [open, token("cut", "…"), close];
  if (list && entries.every(([, each]) => typeof each === "string" || typeof each === "number")) {
    return inRow(value, margin, open, close);
  }
  const inner = `${margin}  `;
  const nodes = [open, "\n"];
  entries.slice(0, MOST_ITEMS).forEach(([name, each], at) => {
    nodes.push(inner);
    if (name !== null) nodes.push(token("name", JSON.stringify(name)), ": ");
    nodes.push(...drawn(each, inner, depth + 1), at < entries.length - 1 ? ",\n" : "\n");
  });
  if (entries.length > MOST_ITEMS) nodes.push(inner, token("cut", `… ${count(entries.length - MOST_ITEMS)} more`), "\n");
  nodes.push(margin, close);
  return nodes;
}

/** Short things one behind the other: deltas, above all. */
function inRow(values, margin, open, close) {
  const nodes = [open];
  values.slice(0, MOST_ITEMS).forEach((each, at) => {
    nodes.push(...drawn(each, margin, MOST_DEPTH), at < values.length - 1 ? ", " : "");
  });
  if (values.length > MOST_ITEMS) nodes.push(token("cut", `… ${count(values.length - MOST_ITEMS)} more`));
  nodes.push(close);
  return nodes;
}

function cut(text) {
  if (text.length <= MOST_CHARS) return JSON.stringify(text);
  return `${JSON.stringify(text.slice(0, MOST_CHARS)).slice(0, -1)}… ${count(text.length - MOST_CHARS)} more"`;
}

function token(kind, text) {
  return h("span", { class: `json-${kind}` }, text);
}
