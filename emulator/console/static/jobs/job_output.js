// What a job has put out so far: the text of a model, chunks, progress, and its output at the end.

import { ModelAnswer } from "../answer/model_answer.js";
import { ofJob } from "../answer/outcome.js";
import { isFractional } from "./progress.js";

/**
 * `isPlain` is whether the output is that of a program, and not a model's answer: then there is
 * nothing about tokens, deltas and the verdict.
 */
export class JobOutput {
  /** @param {boolean} hasEngine whether the server has an engine @param {number} began by performance.now() */
  constructor(hasEngine, began = performance.now()) {
    this.hasEngine = hasEngine;
    this.answer = new ModelAnswer(began);
    /** @type {import("../answer/outcome.js").Outcome|null} */
    this.outcome = null;
    this.clear();
  }

  /** The deltas of the answer. */
  get log() {
    return this.answer.log;
  }

  /** Forget everything, because another attempt of the job has started. */
  clear() {
    this.answer.clear();
    this.isPlain = !this.hasEngine;
    /** @type {any[]} */
    this.chunks = [];
    this.hasOnlyTexts = true;
    this.hasProgress = this.isFraction = this.isOver = false;
    this.progress = this.value = undefined;
  }

  /** Add a chunk that a worker has streamed. */
  addChunk(chunk) {
    this.chunks.push(chunk);
    const texts = textsOf(chunk);
    if (texts === null) {
      this.isPlain = true;
      this.hasOnlyTexts = false;
    } else for (const text of texts) if (text !== "") this.say(text);
  }

  /** Add a delta of the model: that of a job has the marks of the reasoning. */
  say(text) {
    this.answer.add({ kind: "text", text });
  }

  /** Take the progress of a running job; of a large one, only the size is known. @param {{output?: any, bytes?: number}} progress */
  setProgress({ output, bytes }) {
    this.hasProgress = true;
    this.isFraction ||= isFractional(output);
    this.progress = bytes === undefined ? output : `A progress update of ${bytes} bytes`;
  }

  /** Take the state of the job: only a running one has progress. */
  setJob({ status }) {
    if (status !== "IN_PROGRESS") this.hasProgress = this.isFraction = false;
  }

  /** Take the whole job at its end. */
  end(job) {
    this.isOver = true;
    this.hasProgress = false;
    this.value = job.output;
    this.outcome = job.output === undefined ? null : ofJob(job.output);
    if (this.outcome === null) return;
    const last = Array.isArray(job.output) ? job.output[job.output.length - 1] : job.output;
    for (const text of missing(this.log, last?.choices?.[0]?.deltas)) this.say(text);
    this.answer.end(this.outcome);
    const isAnswer = this.log.count > 0 || this.outcome.calls.length > 0 || last?.choices !== undefined;
    if (!isAnswer) this.isPlain = true;
  }

  /** Whether the output says no more than the chunks that were streamed. */
  get isInChunks() {
    const { value, chunks } = this;
    return chunks.length > 0 && (value === undefined || (Array.isArray(value) && (value.length === 0 || value.length === chunks.length)));
  }
}

/** The texts in a worker's chunk: the deltas of our own partial outputs, or text; null if it has neither. */
function textsOf(output) {
  if (typeof output === "string") return [output];
  const choice = output?.choices?.[0];
  if (typeof choice !== "object" || choice === null) return null;
  // The last chunk is the whole answer, whose text the chunks before it have.
  if (output.usage !== undefined) return [];
  const texts = Array.isArray(choice.tokens) ? choice.tokens : [choice.text ?? ""];
  return texts.every((text) => typeof text === "string") ? texts : null;
}

/** What the log lacks of an answer that was told whole: it ended before it was looked at. */
function missing(log, deltas) {
  const before = log.count;
  return Array.isArray(deltas) && before < deltas.length ? deltas.slice(before) : [];
}
