// One parameter as a control, made of what the server says that it takes.

import { h, newId, say } from "../page/dom.js";
import { StopList } from "./stop_list.js";

// A wider range has no use for a slider.
const WIDEST_SLIDER = 200;
const SAFE = Number.MAX_SAFE_INTEGER;

export class Parameter {
  /** @param {string} name @param {any} schema as the server describes it */
  constructor(name, schema) {
    this.name = name;
    this.id = newId("parameter");
    this.schema = schema;
    this.kind = kindOf(name, schema);
    this.bounds = boundsOf(schema);
    this.error = h("p", { class: "field-error", id: `${this.id}-error`, hidden: true });
    this.control = this.#control();
    const words = rangeWords(this.kind, this.bounds);
    const said = `${this.id}-said`;
    this.control.setAttribute("aria-describedby", `${said} ${this.id}-error`);
    this.element = h(
      "div",
      { class: `field ${this.kind}` },
      h(
        "div",
        { class: "field-head" },
        h("label", { for: this.id, title: schema.description }, name),
        h("span", { class: "hint", id: said, title: schema.description }, words ?? schema.description),
      ),
      this.stops?.element ?? h("div", { class: "field-row" }, this.slider, this.control),
      schema.note ? h("p", { class: "field-note" }, schema.note) : null,
      this.error,
    );
  }

  /** What is asked for; undefined where it is left to the server. Throws an Error that says why not. */
  get value() {
    if (this.stops !== undefined) return this.stops.values.length ? this.stops.values : undefined;
    const raw = this.control.value.trim();
    // What is no number, the browser keeps to itself.
    if (this.control.validity.badInput) throw new Error(`${this.name} must be ${this.schema.description}`);
    if (raw === "") return undefined;
    if (this.kind === "flag") return raw === "true";
    if (this.kind === "text") return this.control.value;
    if (this.kind === "json") return this.#json(raw);
    const number = Number(raw);
    if (!Number.isFinite(number)) throw new Error(`${this.name} must be ${this.schema.description}`);
    if (Math.abs(number) > SAFE) throw new Error(`${this.name}: a browser cannot hold whole numbers beyond ${SAFE}`);
    return number;
  }

  set value(value) {
    if (this.stops !== undefined) {
      this.stops.values = value === undefined || value === null ? [] : [value].flat();
      return;
    }
    const unset = value === undefined || value === null;
    if (unset) this.control.value = "";
    else if (this.kind === "json") this.control.value = JSON.stringify(value);
    else this.control.value = String(value);
    this.#follow();
  }

  /** Say what is wrong with it; nothing is wrong with "". */
  complain(text) {
    say(this.error, text);
    this.error.hidden = text === "";
    this.control.toggleAttribute("aria-invalid", text !== "");
    if (text !== "") this.control.setAttribute("aria-invalid", "true");
  }

  #json(raw) {
    try {
      return JSON.parse(raw);
    } catch {
      throw new Error(`${this.name} must be ${this.schema.description}, written as JSON`);
    }
  }

  #control() {
    const unset = this.schema.default;
    const placeholder = unset === null || unset === undefined ? "unset" : String(unset);
    if (this.kind === "stops") {
      this.stops = new StopList(this.id, this.bounds.maxItems);
      return this.stops.input;
    }
    if (this.kind === "flag") {
      const option = (value, text) => h("option", { value }, text);
      return h("select", { id: this.id }, option("", `unset${unset === null ? "" : ` (${unset})`}`), option("true", "true"), option("false", "false"));
    }
    if (this.kind === "json") {
      return h("textarea", { id: this.id, rows: 2, class: "mono", spellcheck: "false", placeholder: "unset, or JSON" });
    }
    if (this.kind === "text") return h("input", { id: this.id, type: "text", placeholder });
    const { minimum, maximum } = this.bounds;
    const step = this.kind === "integer" ? 1 : "any";
    const number = h("input", { id: this.id, type: "number", class: "number", placeholder, step, min: minimum, max: maximum });
    if (Number.isFinite(minimum) && maximum - minimum <= WIDEST_SLIDER && maximum > minimum) {
      this.slider = this.#slider(minimum, maximum, number);
      number.addEventListener("input", () => this.#follow());
    }
    return number;
  }

  /** A second way to set the number, for pointers; keys and screen readers have the first. */
  #slider(minimum, maximum, number) {
    const step = this.kind === "integer" ? 1 : maximum - minimum > 10 ? 0.1 : 0.01;
    const slider = h("input", {
      type: "range",
      min: minimum,
      max: maximum,
      step,
      value: this.schema.default ?? minimum,
      tabindex: "-1",
      "aria-hidden": "true",
    });
    slider.addEventListener("input", () => {
      number.value = slider.value;
      number.dispatchEvent(new Event("change", { bubbles: true }));
    });
    return slider;
  }

  #follow() {
    if (this.slider === undefined) return;
    this.slider.value = this.control.value === "" ? String(this.schema.default ?? this.bounds.minimum) : this.control.value;
  }
}

/** What a schema comes down to, without null. */
function variants(schema) {
  return (schema.anyOf ?? [schema]).filter((each) => each.type !== "null");
}

function kindOf(name, schema) {
  const types = variants(schema).map((each) => each.type);
  if (name === "stop") return "stops";
  if (types.includes("array") || types.includes("object")) return "json";
  if (types.includes("boolean")) return "flag";
  if (types.includes("integer")) return "integer";
  return types.includes("number") ? "number" : "text";
}

function boundsOf(schema) {
  const found = variants(schema);
  const bounds = found[0] ?? {};
  return {
    minimum: bounds.minimum ?? bounds.exclusiveMinimum,
    maximum: bounds.maximum ?? bounds.exclusiveMaximum,
    open: bounds.exclusiveMinimum !== undefined,
    maxItems: found.find((each) => each.maxItems !== undefined)?.maxItems,
  };
}

/** The range in a few signs; undefined where only words will do. */
function rangeWords(kind, { minimum, maximum, open, maxItems }) {
  if (kind === "stops" && maxItems !== undefined) return `up to ${maxItems}`;
  if (kind !== "integer" && kind !== "number") return undefined;
  if (minimum === undefined || maximum === undefined) return undefined;
  const least = String(minimum).replace("-", "−");
  if (maximum > SAFE) return "64-bit integer";
  if (maximum > 1e6) return `${least} or more`;
  return open ? `above ${least}, up to ${maximum}` : `${least} – ${maximum}`;
}
