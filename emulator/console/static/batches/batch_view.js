// One batch: how far it is, what is wrong by lines, what it leaves.

import { ask, send, told } from "../server/api.js";
import { fill, h, newId, say } from "../page/dom.js";
import { count, date, plural } from "../page/format.js";
import { download, notice } from "../page/notices.js";

const OVER = ["failed", "completed", "expired", "cancelled"];
const CANCELLABLE = ["validating", "in_progress"];
const KINDS = { completed: "good", failed: "bad", expired: "bad", cancelled: "plain", validating: "waiting" };
const SHOWN_ERRORS = 200;
const READ_BYTES = 1_000_000;

export class BatchView {
  constructor(batch) {
    this.id = batch.id;
    const barId = newId("progress");
    this.badge = h("span", { class: "badge" });
    this.bar = h("progress", { id: barId, max: 1, value: 0 });
    this.words = h("span", { class: "small muted" });
    this.stop = h("button", { type: "button", class: "button small danger", onclick: () => this.#cancel() }, "Cancel");
    this.files = h("div", { class: "row" });
    this.errors = h("div", { class: "stack tight" });
    this.element = h(
      "li",
      { class: "card batch" },
      h("div", { class: "row between" }, h("div", { class: "row" }, h("code", {}, batch.id), this.badge), h("span", { class: "small muted" }, `${batch.endpoint} · ${date(batch.created_at * 1000)}`)),
      h("label", { for: barId, class: "unseen" }, "Progress"),
      this.bar,
      h("div", { class: "row between" }, this.words, h("div", { class: "row" }, this.files, this.stop)),
      this.errors,
    );
    this.shown = "";
    this.show(batch);
  }

  show(batch) {
    const text = JSON.stringify(batch);
    if (text === this.shown) return;
    this.shown = text;
    const { status, request_counts: counts } = batch;
    const done = counts.completed + counts.failed;
    this.badge.className = `badge ${KINDS[status] ?? "busy"}`;
    say(this.badge, status.replace("_", " "));
    if (counts.total === 0 && !OVER.includes(status)) this.bar.removeAttribute("value");
    else this.bar.value = counts.total ? done / counts.total : 0;
    this.bar.hidden = OVER.includes(status);
    const failed = counts.failed ? `, ${count(counts.failed)} failed` : "";
    const tokens = batch.usage ? ` · ${plural(batch.usage.total_tokens, "token")}` : "";
    say(this.words, counts.total ? `${count(done)} of ${plural(counts.total, "line")}${failed}${tokens}` : "");
    this.stop.hidden = !CANCELLABLE.includes(status);
    fill(this.files, file("Answers", batch.output_file_id), file("Errors", batch.error_file_id), file("Input", batch.input_file_id));
    this.#showErrors(batch);
  }

  #showErrors(batch) {
    if (batch.errors) {
      const rows = batch.errors.data.map(({ line, message }) => [line === null ? "–" : String(line), message]);
      fill(this.errors, table("Errors in the file", "Line", rows));
    } else if (batch.error_file_id && this.read !== batch.error_file_id) {
      this.read = batch.error_file_id;
      this.#readErrors(batch.error_file_id);
    }
  }

  async #readErrors(id) {
    try {
      const response = await send(`/v1/files/${id}/content`, { accept: "*/*", background: true });
      const lines = (await head(response)).split("\n").filter((line) => line !== "");
      const rows = lines.slice(0, SHOWN_ERRORS).map(errorOf).filter((row) => row !== null);
      const more = lines.length > rows.length ? h("p", { class: "small muted" }, `Only the first ${rows.length} are shown; the error file has all of them.`) : null;
      fill(this.errors, table("Failed lines", "custom_id", rows), more);
    } catch (error) {
      fill(this.errors, h("p", { class: "form-error" }, told(error)));
    }
  }

  async #cancel() {
    try {
      this.show(await ask(`/v1/batches/${this.id}/cancel`, { method: "POST" }));
    } catch (error) {
      notice(told(error), "bad");
    }
  }
}

/** The beginning of a body, up to what anybody would read. */
async function head(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return text;
    text += decoder.decode(value, { stream: true });
    if (text.length > READ_BYTES) {
      await reader.cancel();
      return text.slice(0, text.lastIndexOf("\n"));
    }
  }
}

function errorOf(line) {
  const { custom_id: id, response, error } = JSON.parse(line);
  const message = error?.message ?? response?.body?.error?.message;
  return [id, message ?? `status ${response?.status_code}`];
}

function table(caption, first, rows) {
  return h(
    "div",
    { class: "scrolls" },
    h(
      "table",
      { class: "list errors" },
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, first), h("th", { scope: "col" }, "Error"))),
      h("tbody", {}, rows.map(([name, message]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, message)))),
    ),
  );
}

function file(name, id) {
  if (id === null) return null;
  return h("button", { type: "button", class: "button small", onclick: () => save(id) }, name);
}

async function save(id) {
  try {
    const [{ filename }, content] = await Promise.all([ask(`/v1/files/${id}`), send(`/v1/files/${id}/content`, { accept: "*/*" })]);
    download(await content.blob(), filename);
  } catch (error) {
    notice(told(error), "bad");
  }
}
