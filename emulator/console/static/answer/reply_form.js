// The next turn of a chat: what is replied to its answer, or what the tools returned that it calls.

import { fill, h, newId } from "../page/dom.js";
import { answerTurn } from "./turns.js";

export class ReplyForm {
  /** @param {(turns: import("./turns.js").Turn[]) => void} onSend called with all turns of the chat */
  constructor(onSend) {
    this.onSend = onSend;
    this.fields = h("div", { class: "stack tight" });
    this.element = h("form", { class: "reply stack tight", "aria-label": "Reply", hidden: true }, this.fields, h("button", { type: "submit", class: "button small" }, "Send"));
    this.element.addEventListener("submit", (event) => this.#send(event));
    this.element.addEventListener("keydown", (event) => {
      // The key that runs the request runs the reply while it is being written.
      if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) this.#send(event);
    });
    /** @type {{box: HTMLTextAreaElement, id: string|null}[]} */
    this.boxes = [];
  }

  hide() {
    this.element.hidden = true;
  }

  /**
   * Ask for the turn after an answer.
   * @param {import("./turns.js").Turn[]} turns @param {string} text @param {import("./model_answer.js").Call[]} calls
   */
  show(turns, text, calls) {
    this.turns = [...turns, answerTurn(text, calls)];
    this.boxes = calls.length === 0 ? [{ box: textarea(), id: null }] : calls.map(({ id }) => ({ box: textarea(), id }));
    fill(
      this.fields,
      this.boxes.map(({ box }, at) => {
        const label = calls.length === 0 ? "Reply" : `Result of ${calls[at].name}`;
        return h("div", { class: "stack tight" }, h("label", { class: "small muted", for: box.id }, label), box);
      }),
    );
    this.element.hidden = false;
  }

  #send(event) {
    event.preventDefault();
    event.stopPropagation();
    const empty = this.boxes.find(({ box, id }) => id === null && box.value.trim() === "");
    if (empty !== undefined) {
      empty.box.focus();
      return;
    }
    const replies = this.boxes.map(({ box, id }) => (id === null ? { role: "user", content: box.value } : { role: "tool", tool_call_id: id, content: box.value }));
    this.onSend([...this.turns, ...replies]);
  }
}

function textarea() {
  return h("textarea", { id: newId("reply"), rows: 2, class: "grows" });
}
