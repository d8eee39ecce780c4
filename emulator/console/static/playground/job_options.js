// What a job may have beside its input: a webhook, a policy, and a bucket. Empty fields are not sent.

import { toggle } from "../page/choice.js";
import { h, newId } from "../page/dom.js";

const MILLISECONDS = { type: "number", min: "0", step: "1", inputmode: "numeric" };

export class JobOptions {
  constructor() {
    this.webhook = h("input", { type: "text", inputmode: "url", autocomplete: "off", spellcheck: "false" });
    this.executionTimeout = h("input", MILLISECONDS);
    this.ttl = h("input", MILLISECONDS);
    this.lowPriority = toggle("lowPriority", false);
    this.s3Config = h("textarea", { rows: 4, spellcheck: "false", class: "grows" });
    this.s3Config.addEventListener("input", () => this.s3Config.removeAttribute("aria-invalid"));
    this.element = h(
      "details",
      { hidden: true },
      h("summary", {}, "Webhook, policy and bucket"),
      h(
        "div",
        { class: "fields" },
        field("webhook", "a URL that gets the result", this.webhook, "text"),
        field("executionTimeout", "milliseconds", this.executionTimeout),
        field("ttl", "milliseconds", this.ttl),
        this.lowPriority.element,
        field("s3Config", "JSON", this.s3Config, "json"),
      ),
    );
  }

  /** Return the fields of the job that have a value. Throws an Error that says what is wrong. */
  values() {
    const webhook = this.webhook.value.trim();
    const policy = {
      ...milliseconds("executionTimeout", this.executionTimeout),
      ...milliseconds("ttl", this.ttl),
      ...(this.lowPriority.input.checked ? { lowPriority: true } : {}),
    };
    return {
      ...(webhook === "" ? {} : { webhook }),
      ...(Object.keys(policy).length === 0 ? {} : { policy }),
      ...this.#bucket(),
    };
  }

  #bucket() {
    if (this.s3Config.value.trim() === "") return {};
    try {
      return { s3Config: JSON.parse(this.s3Config.value) };
    } catch (error) {
      this.s3Config.setAttribute("aria-invalid", "true");
      throw new Error(`s3Config is not JSON: ${error.message}`);
    }
  }
}

/** Return a field of a policy if it is filled in. */
function milliseconds(name, input) {
  // What is no number has no value, and would be left out without a word.
  if (input.validity?.badInput) throw new Error(`${name} is not a number of milliseconds.`);
  return input.value === "" ? {} : { [name]: Number(input.value) };
}

function field(name, hint, input, kind = "") {
  const [id, hintId] = [newId("option"), newId("hint")];
  input.setAttribute("id", id);
  input.setAttribute("aria-describedby", hintId);
  return h(
    "div",
    { class: `field ${kind}` },
    h("div", { class: "field-head" }, h("label", { for: id }, name), h("span", { class: "hint", id: hintId }, hint)),
    input,
  );
}
