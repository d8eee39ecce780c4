// What a model has answered so far: its reasoning, its text and its tool calls.

import { DeltaLog } from "./delta_log.js";

/**
 * @typedef {{id: string, name: string, arguments: string}} Call a call of a tool; the arguments are JSON
 * @typedef {{kind: "reasoning"|"text", text: string}} Piece
 */

export class ModelAnswer {
  /** @param {number} began when it was asked for, by performance.now() */
  constructor(began) {
    /** All deltas in their order, of which the rates and times are those of the answer. */
    this.log = new DeltaLog(began);
    this.reasoning = new DeltaLog(began);
    this.text = new DeltaLog(began);
    /** @type {Call[]} */
    this.calls = [];
  }

  clear() {
    for (const log of [this.log, this.reasoning, this.text]) log.clear();
    this.calls = [];
  }

  /** Add a delta. @param {Piece} piece */
  add({ kind, text }) {
    const now = performance.now();
    this.log.add(text, now);
    this[kind].add(text, now);
  }

  /** Take what an answer that was not streamed says, or one whose deltas have the marks of the reasoning. */
  end({ reasoning, text, raw, calls }) {
    this.calls = calls;
    if (this.log.count === 0) {
      if (reasoning) this.add({ kind: "reasoning", text: reasoning });
      if (text) this.add({ kind: "text", text });
    } else if (reasoning && this.reasoning.count === 0) {
      this.text.copy(this.log, this.log.chars - (raw ?? "").length);
      this.reasoning.add(reasoning);
    }
  }
}
