// What a model answers, part by part: its reasoning in a fold, its text, its tool calls.

import { CallsView } from "./calls_view.js";
import { h, say } from "../page/dom.js";
import { duration, plural } from "../page/format.js";
import { StreamView } from "./stream_view.js";

export class ModelAnswerView {
  /** @param {string} label what it is, for those who cannot see it */
  constructor(label) {
    this.text = new StreamView(label);
    this.thoughts = new StreamView("Reasoning");
    this.calls = new CallsView();
    this.size = h("span", { class: "small muted" });
    this.fold = h(
      "details",
      { class: "reasoning" },
      h("summary", { onclick: () => (this.isFoldChosen = true) }, "Reasoning ", this.size),
      this.thoughts.element,
    );
    this.element = h("div", { class: "stack tight" }, this.fold, this.text.element, this.calls.element);
    this.answer = null;
    this.show(null);
  }

  /** Called after new text was drawn. @param {() => void} listener */
  set onDrawn(listener) {
    this.text.onDrawn = this.thoughts.onDrawn = listener;
  }

  /** Show another answer, or none. @param {import("./model_answer.js").ModelAnswer|null} answer */
  show(answer) {
    this.answer = answer;
    this.isFoldChosen = false;
    this.text.show(answer?.text ?? null);
    this.thoughts.show(answer?.reasoning ?? null);
    this.changed();
  }

  /** Whether the places are marked at which one delta ends and the next begins. */
  setBoundaries(on) {
    this.text.setBoundaries(on);
    this.thoughts.setBoundaries(on);
  }

  /** Something is new: draw it with the next frame. */
  changed() {
    const { text, reasoning, calls } = this.answer ?? { text: { count: 0 }, reasoning: { count: 0 }, calls: [] };
    this.fold.hidden = reasoning.count === 0;
    if (reasoning.count > 0) {
      say(this.size, `${plural(reasoning.chars, "character")}${reasoning.count > 1 ? ` in ${duration(reasoning.lastMs - reasoning.firstMs)}` : ""}`);
      // It is read while it is all that there is.
      if (!this.isFoldChosen) this.fold.open = text.count === 0;
    }
    this.text.element.hidden = text.count === 0 && (reasoning.count > 0 || calls.length > 0);
    this.calls.show(calls);
    this.text.changed();
    this.thoughts.changed();
  }
}
