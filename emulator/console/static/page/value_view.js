// A value of any kind, to be read: text as text, pictures as pictures, other files as downloads, JSON.

import { fill, h, say } from "./dom.js";
import { bytes, count } from "./format.js";
import { jsonNodes, webLink } from "./json_view.js";
import { contentOf, findFiles, nameOf, readFile, webAddress } from "./media.js";
import { copy, download, notice } from "./notices.js";

const SHOWN_CHARS = 20_000;
const PAGE_CHARS = 100_000;
const SHOWN_NODES = 2_000;
const PAGE_NODES = 10_000;

export class ValueView {
  /** @param {string} label what it is @param {string} name of the file without a suffix */
  constructor(label, name) {
    this.name = name;
    this.value = undefined;
    this.size = h("span", { class: "small muted" });
    this.more = h("button", { type: "button", class: "button small", onclick: () => this.#showMore() }, "Show more");
    this.content = h("div", { class: "stack tight", role: "region", "aria-label": label });
    this.element = h(
      "div",
      { class: "json", hidden: true },
      h(
        "div",
        { class: "json-tools" },
        this.size,
        this.more,
        h("button", { type: "button", class: "button small", onclick: () => copy(this.#whole(), label) }, "Copy"),
        h("button", { type: "button", class: "button small", onclick: () => this.#save() }, "Download"),
      ),
      this.content,
    );
  }

  clear() {
    this.value = undefined;
    this.element.hidden = true;
    fill(this.content);
  }

  show(value) {
    this.value = value;
    this.pages = 0;
    this.element.hidden = false;
    this.bytes = new Blob([this.#whole()]).size;
    this.#draw();
  }

  #draw() {
    const { nodes, cut } = draw(this.value, SHOWN_CHARS + this.pages * PAGE_CHARS, SHOWN_NODES + this.pages * PAGE_NODES);
    fill(this.content, nodes);
    this.more.hidden = cut === "";
    say(this.size, cut === "" ? bytes(this.bytes) : `${bytes(this.bytes)}, ${cut}`);
  }

  #showMore() {
    this.pages += 1;
    this.#draw();
  }

  #whole() {
    return typeof this.value === "string" ? this.value : JSON.stringify(this.value, null, 2);
  }

  #save() {
    const isText = typeof this.value === "string";
    download(new Blob([this.#whole()], { type: isText ? "text/plain" : "application/json" }), `${this.name}.${isText ? "txt" : "json"}`);
  }
}

/** Return nodes for a value of which a small part is enough, such as one chunk of many. */
export function valueNodes(value) {
  const { nodes, cut } = draw(value, 4_000, 200, true);
  return [nodes, cut === "" ? null : h("p", { class: "small muted" }, `Cut: ${cut}.`)];
}

/** Return nodes for the first part of a value, and a phrase on what is not shown. */
function draw(value, maxChars, maxNodes, isCompact = false) {
  if (typeof value === "string") {
    const file = readFile(value);
    if (file !== null) return { nodes: [fileNode(file, "")], cut: "" };
    const address = webAddress(value);
    const text = value.length > maxChars ? value.slice(0, maxChars) : value;
    const shown = address === null ? text : webLink(address);
    const hidden = value.length - text.length;
    return {
      nodes: [h("div", { class: "value-text", tabindex: "0", role: "group", "aria-label": "Text", dir: "auto" }, shown)],
      cut: hidden ? `${count(hidden)} more characters are not shown` : "",
    };
  }
  const { files, hasMore } = findFiles(value);
  const { nodes, cut } = jsonNodes(value, maxNodes, isCompact);
  const cuts = [cut, hasMore && files.length > 0 ? "more files may be in it" : ""];
  return {
    nodes: [
      files.length === 0 ? null : h("div", { class: "files" }, files.map(({ path, file }) => fileNode(file, path))),
      h("pre", { tabindex: "0", role: "group", "aria-label": "JSON" }, h("code", {}, nodes)),
    ],
    cut: cuts.filter((each) => each !== "").join("; "),
  };
}

/** Return a picture, or else the name and size of a file, with a download. */
function fileNode(file, path) {
  const facts = h("span", { class: "small muted" }, `${file.type}, ${bytes(file.bytes)}`);
  const save = h("button", { type: "button", class: "link", onclick: () => saveFile(file) }, `Download ${path || nameOf(file)}`);
  const picture = file.isPicture ? h("img", { src: file.url, alt: path === "" ? "The output as a picture" : `The picture in ${path}` }) : null;
  picture?.addEventListener("load", () => say(facts, `${file.type}, ${bytes(file.bytes)}, ${picture.naturalWidth} × ${picture.naturalHeight}`));
  picture?.addEventListener("error", () => {
    picture.remove();
    say(facts, `${file.type}, ${bytes(file.bytes)}: the browser cannot show it`);
  });
  return h("figure", { class: "file" }, picture, h("figcaption", { class: "row" }, save, facts));
}

function saveFile(file) {
  try {
    download(contentOf(file), nameOf(file));
  } catch {
    notice("The file is malformed, so it cannot be downloaded.", "bad");
  }
}
