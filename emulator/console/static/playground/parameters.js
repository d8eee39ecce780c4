// All parameters of a kind of request: those that most people want, and the rest.

import { fill, h } from "../page/dom.js";
import { Parameter } from "./parameter.js";

const FIRST = ["max_tokens", "temperature", "top_p", "top_k", "seed", "stop"];
// With switches of their own.
const ELSEWHERE = new Set(["stream"]);

export class Parameters {
  constructor() {
    this.first = h("div", { class: "fields" });
    this.rest = h("div", { class: "fields" });
    this.count = h("span", { class: "badge" });
    this.options = h("div", { class: "fields" });
    this.element = h(
      "div",
      { class: "stack" },
      h("fieldset", {}, h("legend", {}, "Sampling"), this.first),
      h("details", {}, h("summary", {}, "More parameters", this.count), this.rest),
      h("details", {}, h("summary", {}, "Answer checks"), this.options),
    );
    /** @type {Map<string, Parameter>} */
    this.known = new Map();
    /** @type {Map<string, Parameter>} */
    this.checks = new Map();
  }

  /** Show what a form takes; what was set stays set where the form knows it, too. */
  show(schemas, checks) {
    const before = this.#kept(this.known);
    const asked = this.#kept(this.checks);
    this.known = made(schemas, before);
    this.checks = made(checks, asked);
    const rest = [...this.known.values()].filter((each) => !FIRST.includes(each.name));
    const first = FIRST.filter((name) => this.known.has(name)).map((name) => this.known.get(name));
    fill(this.first, first.map((each) => each.element));
    fill(this.rest, rest.map((each) => each.element));
    fill(this.options, [...this.checks.values()].map((each) => each.element));
    fill(this.count, rest.length);
  }

  #kept(parameters) {
    const kept = {};
    for (const each of parameters.values()) {
      try {
        kept[each.name] = each.value;
      } catch {
        // What it cannot be it need not stay.
      }
    }
    return kept;
  }

  /** What is set of the sampling. Throws an Error whose `param` names what is wrong. */
  values() {
    return read(this.known);
  }

  /** What is set of the checks. Throws like `values`. */
  checkValues() {
    return read(this.checks);
  }

  /** Set all of both. */
  set(values, checks) {
    for (const each of this.known.values()) each.value = values[each.name];
    for (const each of this.checks.values()) each.value = checks[each.name];
  }

  /** Say what is wrong with one; false where it is none of these. */
  complain(param, text) {
    for (const each of [...this.known.values(), ...this.checks.values()]) each.complain("");
    if (param === null) return false;
    const name = param.split(/[.[]/).filter((part) => part !== "").pop() ?? "";
    const found = this.known.get(name) ?? this.checks.get(name);
    if (found === undefined) return false;
    found.complain(text);
    const folded = found.element.closest("details");
    if (folded !== null) folded.open = true;
    found.control.focus();
    return true;
  }
}

function made(schemas, values) {
  const found = new Map();
  for (const [name, schema] of Object.entries(schemas)) {
    if (ELSEWHERE.has(name) || onlyOne(schema)) continue;
    const parameter = new Parameter(name, schema);
    parameter.value = values[name];
    found.set(name, parameter);
  }
  return found;
}

/** A choice between one thing is none. */
function onlyOne(schema) {
  return (schema.anyOf ?? [schema]).some((each) => each.minimum !== undefined && each.minimum === each.maximum);
}

function read(parameters) {
  const values = {};
  for (const each of parameters.values()) {
    try {
      const value = each.value;
      if (value !== undefined) values[each.name] = value;
    } catch (error) {
      throw Object.assign(error, { param: each.name });
    }
  }
  return values;
}
