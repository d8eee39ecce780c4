// JSON to be read: laid out and coloured, long parts cut short; whole for the clipboard and a file.

import { fill, h } from "./dom.js";
import { bytes, count } from "./format.js";
import { readFile, webAddress } from "./media.js";
import { copy, download } from "./notices.js";

const MOST_ITEMS = 40;
const MOST_CHARS = 2_000;
const MOST_DEPTH = 12;
const MOST_NODES = 4_000;
const COMPACT_CHARS = 60;

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
    const size = bytes(new Blob([text]).size);
    const { nodes, cut } = jsonNodes(value);
    this.size.textContent = cut === "" ? size : `${size}; ${cut}, the download has all`;
    fill(this.code, nodes);
  }

  #whole() {
    return JSON.stringify(this.value, null, 2);
  }

  #save() {
    download(new Blob([this.#whole()], { type: "application/json" }), this.name);
  }
}

/**
 * Return nodes for a value, and a phrase on what is left out: long lists and texts are cut, and
 * everything after `maxNodes` values. A compact drawing has small objects in one line.
 */
export function jsonNodes(value, maxNodes = MOST_NODES, isCompact = false) {
  const drawing = new Drawing(maxNodes, isCompact);
  const nodes = drawing.draw(value, "", 0);
  if (!drawing.isCut) return { nodes, cut: "" };
  const total = countValues(value);
  const cut = drawing.shown < total ? `${count(drawing.shown)} of ${count(total)} values are shown` : "long texts are cut";
  return { nodes, cut };
}

function countValues(value) {
  let total = 0;
  const stack = [value];
  while (stack.length > 0) {
    const each = stack.pop();
    total += 1;
    if (each !== null && typeof each === "object") for (const inner of Object.values(each)) stack.push(inner);
  }
  return total;
}

class Drawing {
  constructor(maxNodes, isCompact) {
    this.isCompact = isCompact;
    this.shown = 0;
    this.left = maxNodes;
    this.items = Math.max(MOST_ITEMS, Math.floor(maxNodes / 20));
    this.chars = MOST_CHARS * Math.max(1, Math.floor(maxNodes / MOST_NODES));
    this.isCut = false;
  }

  /** Return nodes for a value; `margin` stands before each of its lines. */
  draw(value, margin, depth) {
    this.left -= 1;
    this.shown += 1;
    if (value === null || typeof value === "boolean") return [token("word", String(value))];
    if (typeof value === "number") return [token("number", JSON.stringify(value))];
    if (typeof value === "string") return [this.#text(value)];
    const list = Array.isArray(value);
    const names = list ? null : Object.keys(value);
    const total = list ? value.length : names.length;
    const [open, close] = list ? "[]" : "{}";
    if (total === 0) return [open + close];
    if (depth > MOST_DEPTH || this.left <= 0) return [open, this.#hidden("…"), close];
    const inRow = list ? value.slice(0, this.items).every((each) => typeof each === "string" || typeof each === "number") : this.#isSmall(value);
    const inner = `${margin}  `;
    const nodes = [open, inRow ? "" : "\n"];
    let at = 0;
    for (; at < total && at < this.items && this.left > 0; at += 1) {
      if (!inRow) nodes.push(inner);
      if (names !== null) nodes.push(this.#text(names[at], "name"), ": ");
      nodes.push(...this.draw(list ? value[at] : value[names[at]], inner, depth + 1));
      // Short things stand one behind the other: deltas, above all.
      nodes.push(at < total - 1 ? "," : "", inRow ? (at < total - 1 ? " " : "") : "\n");
    }
    if (at < total) nodes.push(inRow ? "" : inner, this.#hidden(`… ${count(total - at)} more`), inRow ? "" : "\n");
    nodes.push(inRow ? "" : margin, close);
    return nodes;
  }

  #isSmall(value) {
    const values = this.isCompact ? Object.values(value) : [];
    const isFlat = values.length > 0 && values.length <= 8 && values.every((each) => each === null || typeof each !== "object");
    return isFlat && JSON.stringify(value).length <= COMPACT_CHARS;
  }

  #text(text, kind = "string") {
    const file = kind === "string" ? readFile(text) : null;
    if (file !== null) return token("cut", `(${file.type}, ${bytes(file.bytes)})`);
    const address = kind === "string" ? webAddress(text) : null;
    if (address !== null) return token(kind, ['"', webLink(address), '"']);
    if (text.length <= this.chars) return token(kind, JSON.stringify(text));
    this.isCut = true;
    return token(kind, `${JSON.stringify(text.slice(0, this.chars)).slice(0, -1)}… ${count(text.length - this.chars)} more"`);
  }

  #hidden(text) {
    this.isCut = true;
    return token("cut", text);
  }
}

/** Return a link to another site, which opens in a tab of its own. */
export function webLink(address) {
  return h("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, address);
}

function token(kind, text) {
  return h("span", { class: `json-${kind}` }, text);
}
