// The events of an OpenAI stream put together again, as the answer would have been without one.

import { callsOf } from "./outcome.js";

export class Assembly {
  constructor() {
    this.body = null;
    /** @type {Map<number, any>} */
    this.choices = new Map();
  }

  /** Take a chunk; return what its first choice says that is new. @returns {import("./model_answer.js").Piece[]} */
  add(chunk) {
    const { choices, object, ...rest } = chunk;
    this.body = { ...this.body, ...rest, object: object?.replace(".chunk", "") };
    const said = [];
    for (const choice of choices ?? []) {
      const pieces = this.#take(choice);
      if ((choice.index ?? 0) === 0) said.push(...pieces);
    }
    return said;
  }

  #take({ index = 0, delta, text, ...rest }) {
    let known = this.choices.get(index);
    if (known === undefined) {
      known = { index, parts: [], thoughts: [], calls: [], chat: delta !== undefined, rest: {} };
      this.choices.set(index, known);
    }
    for (const [name, value] of Object.entries(rest)) {
      if (value === null) known.rest[name] ??= null;
      else if (name === "logprobs") known.rest.logprobs = joined(known.rest.logprobs, value);
      else known.rest[name] = value;
    }
    const thought = delta?.reasoning_content ?? "";
    const said = text ?? delta?.content ?? "";
    known.parts.push(said);
    if (thought) known.thoughts.push(thought);
    for (const call of delta?.tool_calls ?? []) addCall(known.calls, call);
    return [
      { kind: "reasoning", text: thought },
      { kind: "text", text: said },
    ].filter((piece) => piece.text !== "");
  }

  /** The calls of the first choice, as far as they have come. @returns {import("./model_answer.js").Call[]} */
  get calls() {
    return callsOf(this.choices.get(0)?.calls);
  }

  /** The whole answer as JSON. */
  whole() {
    const choices = [...this.choices.values()].map(({ index, parts, thoughts, calls, chat, rest }) => {
      const content = parts.join("");
      if (!chat) return { index, text: content, ...rest };
      const message = { role: "assistant", content };
      if (thoughts.length) message.reasoning_content = thoughts.join("");
      if (calls.length) message.tool_calls = calls;
      return { index, message, ...rest };
    });
    return { ...this.body, choices };
  }
}

function addCall(calls, { index = 0, function: part, ...rest }) {
  const call = (calls[index] ??= { function: { name: "", arguments: "" } });
  Object.assign(call, rest);
  call.function.name += part?.name ?? "";
  call.function.arguments += part?.arguments ?? "";
}

/** Log-probabilities come as lists, by names, a part with each chunk. */
function joined(before, part) {
  if (before === undefined || before === null) return structuredClone(part);
  for (const [name, values] of Object.entries(part)) {
    if (Array.isArray(values) && Array.isArray(before[name])) before[name].push(...values);
    else before[name] = values;
  }
  return before;
}
