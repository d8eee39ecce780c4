// The newest lines of a log, as text. It is drawn once a frame, however fast the lines arrive.

import { fill, h, say } from "../page/dom.js";
import { clock, count } from "../page/format.js";
import { readLine } from "./log_line.js";

export const MAX_LINES = 2000;
// What is kept for a change of the filter: as many lines as the server keeps.
const MAX_KEPT = 5000;
export const MAX_LINE_CHARS = 4000;
// A scroll position this close to the end follows new lines.
const END_PX = 40;
// Colours and cursor movements of terminals.
const TERMINAL_CODES = /\x1b\[[0-9;?]*[A-Za-z]/g;

export class LogView {
  /** @param {string} label the name that a screen reader uses */
  constructor(label) {
    this.lines = h("div", { class: "log-lines" });
    this.cut = h("p", { class: "small muted", hidden: true });
    this.none = h("p", { class: "small muted", hidden: true }, "The log has no line of this job.");
    // Not a live region: a worker may print a thousand lines in a second.
    this.element = h("div", { class: "log", role: "region", "aria-label": label, tabindex: "0" }, this.cut, this.none, this.lines);
    this.isFiltered = false;
    this.clear();
  }

  clear() {
    /** @type {(import("./log_line.js").LogLine & {isOfJob?: boolean})[]} */
    this.kept = [];
    this.#restart();
  }

  /** Show only the lines with `isOfJob`, or all lines. */
  setFilter(isFiltered) {
    this.isFiltered = isFiltered;
    this.#restart();
    for (const line of this.kept) this.#show(line);
    this.draw();
  }

  #restart() {
    this.pending = [];
    this.total = 0;
    fill(this.lines);
    this.cut.hidden = true;
  }

  /** Add a line with the next frame. */
  add(line) {
    this.kept.push(line);
    if (this.kept.length > 2 * MAX_KEPT) this.kept = this.kept.slice(-MAX_KEPT);
    this.#show(line);
  }

  #show(line) {
    if (this.isFiltered && !line.isOfJob) return;
    this.total += 1;
    this.pending.push(line);
    // A hidden tab draws no frames, so the lines that wait are bounded too.
    if (this.pending.length > 2 * MAX_LINES) this.pending = this.pending.slice(-MAX_LINES);
    if (this.frame !== undefined) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = undefined;
      this.draw();
    });
  }

  draw() {
    const box = this.element;
    const isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < END_PX;
    const added = document.createDocumentFragment();
    for (const line of this.pending.slice(-MAX_LINES)) added.append(lineElement(line));
    this.pending = [];
    this.lines.append(added);
    while (this.lines.childNodes.length > MAX_LINES) this.lines.firstChild.remove();
    const hidden = this.total - this.lines.childNodes.length;
    this.cut.hidden = hidden === 0;
    this.none.hidden = !this.isFiltered || this.total > 0;
    if (hidden > 0) say(this.cut, `${count(hidden)} earlier lines are not shown.`);
    if (isAtEnd) box.scrollTop = box.scrollHeight;
  }
}

function lineElement({ ts, source, line }) {
  const time = h("span", { class: "log-time" }, clock(Date.parse(ts)));
  return h("div", { class: `log-line ${source === "system" ? "system" : ""}` }, time, " ", displayText(source === "system" ? line : readLine(line).text));
}

/** Return a line without terminal codes, cut to a length that the page can lay out. */
export function displayText(line) {
  const text = line.replace(TERMINAL_CODES, "");
  if (text.length <= MAX_LINE_CHARS) return text;
  return `${text.slice(0, MAX_LINE_CHARS)}… (${count(text.length - MAX_LINE_CHARS)} more characters)`;
}
