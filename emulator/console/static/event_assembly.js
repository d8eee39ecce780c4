// The events of a streamed response (/v1/responses) or message (/v1/messages), put together again.

/** A response: its last event has all of it. */
export class ResponseAssembly {
  constructor() {
    this.response = null;
  }

  /** Take an event; return the new text that it has. */
  add(event) {
    if (event.response) this.response = event.response;
    if (event.type === "response.output_text.delta" || event.type === "response.reasoning_text.delta") return event.delta;
    return "";
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

  /** Take an event; return the new text that it has. */
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
    return "";
  }

  #extend(index, delta) {
    const block = this.message.content[index];
    if (delta.type === "input_json_delta") this.inputs.set(index, (this.inputs.get(index) ?? "") + delta.partial_json);
    if (delta.type === "signature_delta") block.signature = delta.signature;
    if (delta.type === "thinking_delta") block.thinking += delta.thinking;
    if (delta.type === "text_delta") block.text += delta.text;
    return delta.text ?? delta.thinking ?? "";
  }

  #close(index) {
    const input = this.inputs.get(index);
    if (input) this.message.content[index].input = JSON.parse(input);
  }

  whole() {
    return this.message;
  }
}
