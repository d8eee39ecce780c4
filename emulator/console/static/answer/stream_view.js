// A text that grows: drawn once a frame, and never more of it than a screen reader could bear.

import { fill, h, say } from "../page/dom.js";
import { count, duration } from "../page/format.js";

// What is shown of a text that is longer: its end. Layout of one paragraph takes as long as it is.
const SHOWN_CHARS = 20_000;
const SHOWN_DELTAS = 500;
const NODE_CHARS = 2_000;
// More of it than this is for a file.
const PAGE_CHARS = 60_000;

export class StreamView {
  /** @param {string} label what it is, for those who cannot see it */
  constructor(label) {
    this.text = h("div", { class: "stream-text" });
    this.above = h("span");
    this.more = h("button", { type: "button", class: "link", onclick: () => this.#showMore() }, "Show more");
    this.cut = h("p", { class: "stream-cut small muted", hidden: true }, this.above, " ", this.more);
    this.element = h(
      "div",
      { class: "stream", role: "region", "aria-label": label, tabindex: "0", dir: "auto" },
      this.cut,
      this.text,
    );
    this.boundaries = false;
    this.onDrawn = () => {};
    /** How often something new was painted; for whoever measures it. */
    this.paints = 0;
    this.show(null);
  }

  /** Show another log, or none. @param {import("./delta_log.js").DeltaLog|null} log */
  show(log) {
    this.log = log;
    this.limit = SHOWN_CHARS;
    this.#restart();
  }

  /** Whether the places are marked at which one delta ends and the next begins. */
  setBoundaries(on) {
    this.boundaries = on;
    this.element.classList.toggle("bounded", on);
    this.#restart();
  }

  /** Something is new: draw it with the next frame. */
  changed() {
    if (this.frame !== undefined) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = undefined;
      this.#draw();
    });
  }

  #restart() {
    this.drawn = 0;
    this.chars = 0;
    fill(this.text);
    this.cut.hidden = true;
    this.changed();
  }

  #showMore() {
    this.limit += PAGE_CHARS;
    this.#restart();
  }

  #draw() {
    const log = this.log;
    if (log === null) return;
    if (log.count < this.drawn) {
      this.#restart();
      return;
    }
    if (log.count === this.drawn) return;
    const box = this.element;
    const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    if (this.boundaries) this.#drawDeltas(log);
    else this.#drawText(log);
    this.drawn = log.count;
    this.paints += 1;
    this.#tellCut(log);
    if (follows) box.scrollTop = box.scrollHeight;
    this.onDrawn();
  }

  #drawText(log) {
    // From the end backwards: what would be cut off at once need not be drawn.
    let from = log.count;
    let length = 0;
    while (from > this.drawn && length < this.limit) {
      from -= 1;
      length += log.texts[from].length;
    }
    if (from > this.drawn) {
      fill(this.text);
      this.chars = 0;
    }
    let added = log.texts.slice(from).join("");
    if (added.length > this.limit) added = whole(added.slice(-this.limit));
    for (let at = 0; at < added.length; ) {
      let node = this.text.lastChild;
      if (node === null || node.length >= NODE_CHARS) node = this.text.appendChild(document.createTextNode(""));
      const piece = added.slice(at, at + NODE_CHARS - Math.min(node.length, NODE_CHARS - 1));
      node.appendData(piece);
      at += piece.length;
      this.chars += piece.length;
    }
    while (this.chars > this.limit && this.text.childNodes.length > 1) {
      this.chars -= this.text.firstChild.length;
      this.text.firstChild.remove();
    }
  }

  #drawDeltas(log) {
    const most = Math.round((this.limit / SHOWN_CHARS) * SHOWN_DELTAS);
    const from = Math.max(this.drawn, log.count - most);
    if (from > this.drawn) {
      fill(this.text);
      this.chars = 0;
    }
    const added = document.createDocumentFragment();
    for (let at = from; at < log.count; at += 1) {
      const text = log.texts[at];
      const shown = text.length > this.limit ? whole(text.slice(-this.limit)) : text;
      const title = `#${at + 1} · +${duration(log.gapMs(at))} · ${duration(log.times[at])}`;
      added.append(h("span", { class: at % 2 ? "delta odd" : "delta", title }, shown));
      this.chars += shown.length;
    }
    this.text.append(added);
    while (this.text.childNodes.length > most || (this.chars > this.limit && this.text.childNodes.length > 1)) {
      this.chars -= this.text.firstChild.textContent.length;
      this.text.firstChild.remove();
    }
  }

  #tellCut(log) {
    const hidden = log.chars - this.chars;
    this.cut.hidden = hidden <= 0;
    if (hidden > 0) say(this.above, `${count(hidden)} characters above are hidden.`);
  }
}

/** A text that was cut off in front, without half a character. */
function whole(text) {
  const first = text.charCodeAt(0);
  return first >= 0xdc00 && first <= 0xdfff ? text.slice(1) : text;
}
