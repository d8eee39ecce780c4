// The output of a program's job: its progress while it runs, its chunks, and its value at the end.

import { toggle } from "../page/choice.js";
import { fill, h, say } from "../page/dom.js";
import { count, plural } from "../page/format.js";
import { fractionOf } from "./progress.js";
import { ValueView, valueNodes } from "../page/value_view.js";

const SHOWN_CHUNKS = 100;
const PAGE_CHUNKS = 400;

export class OutputView {
  /** @param {string} label the name that a screen reader uses */
  constructor(label) {
    this.bar = h("progress", { max: "1", "aria-label": "Progress of the job", hidden: true });
    this.barText = h("p", { class: "number small" });
    this.told = h("div", {});
    this.progress = h("div", { class: "stack tight", hidden: true }, this.bar, this.barText, this.told);
    this.join = toggle("Join the texts", false, () => this.#restart());
    this.total = h("span", { class: "small muted" });
    this.more = h("button", { type: "button", class: "link", onclick: () => this.#showMore() }, "Show more");
    this.list = h("ol", { class: "chunks" });
    this.joined = new ValueView("Joined text", "output");
    this.chunks = h(
      "div",
      { class: "stack tight", role: "region", "aria-label": "Streamed chunks", hidden: true },
      h("div", { class: "row" }, this.total, this.more, this.join.element),
      this.list,
      this.joined.element,
    );
    this.value = new ValueView(label, "output");
    this.empty = h("p", { class: "muted" });
    this.element = h("div", { class: "stack output" }, this.progress, this.chunks, this.value.element, this.empty);
    this.show(null);
  }

  /** Show another output. @param {import("./job_output.js").JobOutput|null} output */
  show(output) {
    this.output = output;
    this.limit = SHOWN_CHUNKS;
    this.join.input.checked = false;
    this.value.clear();
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
    this.isValueDrawn = false;
    fill(this.list);
    this.joined.clear();
    this.changed();
  }

  #showMore() {
    this.limit += PAGE_CHUNKS;
    this.#restart();
  }

  #draw() {
    const { output } = this;
    if (output === null) return;
    // Another attempt has a list of its own.
    if (output.chunks !== this.drawnChunks) {
      this.drawnChunks = output.chunks;
      this.drawn = 0;
      fill(this.list);
    }
    this.#drawProgress(output);
    this.#drawChunks(output);
    const hasValue = output.isOver && output.value !== undefined && !output.isInChunks;
    if (hasValue && !this.isValueDrawn) this.value.show(output.value);
    this.isValueDrawn = hasValue;
    if (!hasValue) this.value.clear();
    this.empty.hidden = hasValue || output.hasProgress || output.chunks.length > 0;
    say(this.empty, output.isOver ? "No output." : "No output yet.");
  }

  #drawProgress({ hasProgress, progress, isFraction }) {
    this.progress.hidden = !hasProgress;
    if (!hasProgress || progress === this.shownProgress) return;
    this.shownProgress = progress;
    const fraction = fractionOf(progress, isFraction);
    this.bar.hidden = fraction === null;
    if (fraction !== null) this.bar.value = fraction;
    say(this.barText, fraction === null ? "" : `${Math.round(fraction * 100)} %`);
    this.barText.hidden = fraction === null;
    // A number says no more than the bar.
    fill(this.told, fraction !== null && typeof progress === "number" ? null : valueNodes(progress));
  }

  #drawChunks(output) {
    const total = output.chunks.length;
    this.chunks.hidden = total === 0;
    if (total === this.drawn) return;
    this.join.element.hidden = !output.hasOnlyTexts;
    const joins = this.join.input.checked && !this.join.element.hidden;
    this.list.hidden = joins;
    this.joined.element.hidden = !joins;
    if (joins) this.joined.show(output.log.text());
    else this.#addToList(output.chunks);
    this.drawn = total;
    const hidden = joins ? 0 : total - this.list.children.length;
    this.more.hidden = hidden === 0;
    say(this.total, `${plural(total, "chunk")}${hidden ? `, of which the first ${count(hidden)} are not shown` : ""}`);
  }

  #addToList(chunks) {
    const from = Math.max(this.drawn, chunks.length - this.limit);
    if (from > this.drawn) fill(this.list);
    const added = document.createDocumentFragment();
    for (let at = from; at < chunks.length; at += 1) {
      added.append(h("li", { class: "chunk" }, h("span", { class: "chunk-number small muted" }, `${count(at + 1)}`), h("div", { class: "chunk-value" }, valueNodes(chunks[at]))));
    }
    this.list.append(added);
    while (this.list.children.length > this.limit) this.list.firstChild.remove();
  }
}
