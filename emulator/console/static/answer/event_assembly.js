// The events of a streamed response (/v1/responses) or message (/v1/messages), put together again.

import { callsOf } from "./outcome.js";

/** A response: its last event has all of it. */
export class ResponseAssembly {
  constructor() {
    this.response = null;
    /** @type {Map<number, any>} The calls that have begun, by their place in the output. */
    this.items = new Map();
  }

  /** Take an event; return what it says that is new. @returns {import("./model_answer.js").Piece[]} */
  add(event) {
    if (event.response) this.response = event.response;
    if (event.type === "response.output_text.delta") return [{ kind: "text", text: event.delta }];
    if (event.type === "response.reasoning_text.delta") return [{ kind: "reasoning", text: event.delta }];
    if (event.type === "response.output_item.added" && event.item.type === "function_call") this.items.set(event.output_index, { ...event.item, arguments: "" });
    if (event.type === "response.function_call_arguments.delta") this.items.get(event.output_index).arguments += event.delta;
    return [];
  }

  get calls() {
    return callsOf([...this.items.values()]);
  }

  whole() {
    return this.response;
  }
}

/** A message: its blocks come one after the other, and its usage at the end. */
export class MessageAssembly {
  constructor() {
    this.message = null;
    this.inputs = new Map();
  }

  /** Take an event; return what it says that is new. @returns {import("./model_answer.js").Piece[]} */
  add(event) {
    if (event.type === "message_start") this.message = structuredClone(event.message);
    else if (event.type === "content_block_start") this.message.content[event.index] = structuredClone(event.content_block);
    else if (event.type === "content_block_delta") return this.#extend(event.index, event.delta);
    else if (event.type === "content_block_stop") this.#close(event.index);
    else if (event.type === "message_delta") {
      const { usage, delta, ...rest } = event;
      delete rest.type;
      Object.assign(this.message, delta, rest, { usage: { ...this.message.usage, ...usage } });
    }
    return [];
  }

  /** The calls that have begun, whose input is complete only at the end of each. */
  get calls() {
    const blocks = this.message?.content.map((block, at) => ({ ...block, arguments: this.inputs.get(at) })) ?? [];
    return callsOf(blocks.filter(({ type }) => type === "tool_use"));
  }

  /** Add a delta to its block; return what it says that is new. @returns {import("./model_answer.js").Piece[]} */
  #extend(index, delta) {
    const block = this.message.content[index];
    if (delta.type === "input_json_delta") this.inputs.set(index, (this.inputs.get(index) ?? "") + delta.partial_json);
    if (delta.type === "signature_delta") block.signature = delta.signature;
    if (delta.type === "thinking_delta") block.thinking += delta.thinking;
    if (delta.type === "text_delta") block.text += delta.text;
    if (delta.text) return [{ kind: "text", text: delta.text }];
    return delta.thinking ? [{ kind: "reasoning", text: delta.thinking }] : [];
  }

  #close(index) {
    const input = this.inputs.get(index);
    if (input) this.message.content[index].input = JSON.parse(input);
  }

  whole() {
    return this.message;
  }
}
