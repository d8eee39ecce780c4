// Files of requests: uploaded, answered, downloaded.

import { ask, told } from "../server/api.js";
import { BatchView } from "./batch_view.js";
import { fill, h, newId } from "../page/dom.js";
import { bytes } from "../page/format.js";
import { onKey } from "../server/keys.js";
import { notice } from "../page/notices.js";
import { Polling } from "../page/polling.js";
import { routeOf, upload } from "./upload.js";

const EVERY_MS = 1000;
const LISTED = 50;
const SAMPLE = ["red", "green", "blue"].map((colour) =>
  JSON.stringify({ custom_id: colour, method: "POST", url: "/v1/completions", body: { prompt: `A short poem about ${colour}:`, max_tokens: 24 } }),
);

export class BatchesScreen {
  title = "Batches";

  constructor() {
    this.polling = new Polling(() => this.#look(), EVERY_MS);
    const inputId = newId("file");
    this.input = h("input", { id: inputId, type: "file", accept: ".jsonl,.ndjson,application/x-ndjson", class: "unseen", onchange: () => this.#take(this.input.files) });
    this.progress = h("progress", { max: 1, value: 0, hidden: true, "aria-label": "Upload" });
    this.wrong = h("div", { class: "form-error", role: "alert", hidden: true });
    this.zone = h(
      "div",
      { class: "drop" },
      h("p", { class: "empty-title" }, "Upload a JSON Lines file of requests"),
      h("p", { class: "muted" }, "Drop a file here or choose one. Each line is answered exactly once."),
      h("div", { class: "row centred" }, this.input, h("label", { for: inputId, class: "button primary" }, "Choose a file"), h("button", { type: "button", class: "button", onclick: () => this.#send(sample()) }, "Try three lines")),
      this.progress,
    );
    this.list = h("ol", { class: "batches" });
    this.empty = h("p", { class: "muted centred", hidden: true }, "No batches yet.");
    this.element = h("div", { class: "stack" }, h("h1", {}, "Batches"), h("section", { class: "card", "aria-label": "Upload" }, this.zone, this.wrong), this.list, this.empty);
    /** @type {Map<string, BatchView>} */
    this.known = new Map();
    this.#listen();
    onKey(() => this.polling.now());
  }

  show() {
    this.polling.start();
  }

  hide() {
    this.polling.stop();
  }

  #listen() {
    const over = (on) => (event) => {
      event.preventDefault();
      this.zone.classList.toggle("over", on);
    };
    this.zone.addEventListener("dragover", over(true));
    this.zone.addEventListener("dragleave", over(false));
    this.zone.addEventListener("drop", (event) => {
      over(false)(event);
      this.#take(event.dataTransfer.files);
    });
  }

  #take(files) {
    if (files.length === 1) this.#send(files[0]);
    else if (files.length > 1) this.#complain("Choose one file at a time: each file becomes one batch.");
  }

  async #send(file) {
    this.#complain("");
    this.progress.hidden = false;
    this.progress.value = 0;
    try {
      const endpoint = await routeOf(file);
      if (endpoint === null) throw new Error(`${file.name}: the first line is not a request with the keys custom_id, method, url and body.`);
      const stored = await upload(file, (share) => (this.progress.value = share));
      const body = { input_file_id: stored.id, endpoint, completion_window: "24h" };
      await ask("/v1/batches", { body });
      notice(`${file.name} (${bytes(file.size)}) was uploaded as a batch.`);
      this.polling.now();
    } catch (error) {
      this.#complain(told(error));
    } finally {
      this.progress.hidden = true;
      this.input.value = "";
    }
  }

  /** Say what is wrong, line by line where it is told so. */
  #complain(text) {
    const problems = text.split(/; (?=line \d+: )/);
    fill(this.wrong, problems.length > 1 ? h("ul", {}, problems.map((each) => h("li", {}, each))) : text);
    this.wrong.hidden = text === "";
  }

  async #look() {
    try {
      const { data } = await ask(`/v1/batches?limit=${LISTED}`, { background: this.asked === true });
      if (this.asked !== true || this.failed) this.#complain("");
      this.failed = false;
      this.#draw(data);
    } catch (error) {
      this.failed = true;
      this.#complain(told(error));
    }
    this.asked = true;
  }

  #draw(batches) {
    const before = this.known;
    this.known = new Map();
    batches.forEach((batch, at) => {
      const view = before.get(batch.id) ?? new BatchView(batch);
      view.show(batch);
      this.known.set(batch.id, view);
      if (this.list.children[at] !== view.element) this.list.insertBefore(view.element, this.list.children[at] ?? null);
    });
    while (this.list.children.length > batches.length) this.list.lastChild.remove();
    this.empty.hidden = batches.length > 0;
  }
}

function sample() {
  return new File([SAMPLE.join("\n")], "three-lines.jsonl", { type: "application/x-ndjson" });
}
