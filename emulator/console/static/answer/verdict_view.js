// The verdict of validation: valid or not, issues, notices, intent; and what the sanitiser removed.

import { changes } from "./changes.js";
import { fill, h } from "../page/dom.js";
import { count, plural } from "../page/format.js";

// Of a long stretch that stayed as it was, so much is shown at each end.
const CONTEXT_CHARS = 240;
const MOST_CHARS = 20_000;

export class VerdictView {
  constructor() {
    this.element = h("div", { class: "stack" });
    this.show(null);
  }

  /** @param {import("./outcome.js").Outcome|null} outcome */
  show(outcome) {
    if (outcome === null) {
      fill(this.element, h("p", { class: "muted" }, "The verdict appears when the answer is complete."));
      return;
    }
    const { validation, warnings, redacted, blocked } = outcome;
    fill(
      this.element,
      validation === null ? h("p", { class: "muted" }, "This answer was not validated.") : this.#verdict(validation, blocked),
      redacted === null ? null : this.#redacted(redacted),
      warnings.length ? h("ul", { class: "issues" }, warnings.map((each) => h("li", { class: "issue warn" }, each))) : null,
    );
  }

  #verdict(validation, blocked) {
    const issues = validation.details?.issues ?? validation.issues.map((message) => ({ message }));
    const notices = validation.details?.notices ?? [];
    const word = blocked ? "Blocked" : validation.valid ? "Valid" : plural(issues.length, "issue");
    return [
      h(
        "div",
        { class: "row" },
        h("span", { class: `badge ${validation.valid ? "good" : "bad"}` }, word),
        h("span", {}, "Intent ", h("strong", {}, validation.intent)),
        h("span", { class: "muted" }, validation.sanitized ? "The text was sanitised." : "Nothing was removed."),
      ),
      findings(issues, "bad"),
      findings(notices, "note"),
    ];
  }

  #redacted(kinds) {
    const told = Object.entries(kinds).map(([kind, times]) => `${kind} ${times}×`);
    return h("p", {}, "Redacted: ", told.join(", "), ".");
  }
}

/** A list of issues or notices, each with its rule; null where there are none. */
function findings(list, kind) {
  if (list.length === 0) return null;
  return h("ul", { class: "issues" }, list.map(({ rule, message }) => h("li", { class: `issue ${kind}` }, message, rule ? h("code", {}, rule) : null)));
}

export class ChangesView {
  constructor() {
    this.element = h("div", { class: "stack" });
    this.show(null);
  }

  /** @param {import("./outcome.js").Outcome|null} outcome @returns how many places were changed */
  show(outcome) {
    const validation = outcome?.validation ?? null;
    if (outcome === null || validation === null || !validation.sanitized) {
      const why = outcome === null ? "Changes made by the sanitiser appear here." : "The sanitiser changed nothing.";
      fill(this.element, h("p", { class: "muted" }, why));
      return 0;
    }
    const { removed, removed_count: total } = validation.details;
    const names = [...new Set(removed.map((each) => each.rule))];
    const told = h("p", {}, `${plural(total, "passage")} removed`, names.length ? [" by ", names.map((name, at) => [at ? ", " : "", h("code", {}, name)])] : "", ".");
    if (outcome.raw === null) {
      fill(this.element, told, h("p", { class: "muted" }, "The original text is available only for streamed answers: turn Stream on to see it."));
      return total;
    }
    const parts = changes(outcome.raw, outcome.text, removed.map((each) => each.span));
    fill(
      this.element,
      told,
      h("div", { class: "diff", tabindex: "0", role: "region", "aria-label": "Changes made by the sanitiser", dir: "auto" }, parts.map(drawn)),
      total > removed.length ? h("p", { class: "small muted" }, `Only the first ${removed.length} are listed.`) : null,
    );
    return total;
  }
}

function drawn({ kind, text }) {
  if (kind === "gone") return h("del", {}, shortened(text));
  if (kind === "new") return h("ins", {}, shortened(text));
  if (text.length <= CONTEXT_CHARS * 3) return text;
  const hidden = count(text.length - 2 * CONTEXT_CHARS);
  return [text.slice(0, CONTEXT_CHARS), h("span", { class: "cut" }, ` … ${hidden} unchanged characters … `), text.slice(-CONTEXT_CHARS)];
}

function shortened(text) {
  return text.length <= MOST_CHARS ? text : `${text.slice(0, MOST_CHARS)} … ${count(text.length - MOST_CHARS)} more`;
}
