// A choice between a few things, all of them in sight.

import { h, newId } from "./dom.js";

export class Choice {
  /**
   * @param {string} label
   * @param {[string, string][]} options values and what they are called
   * @param {(value: string) => void} onChange
   */
  constructor(label, options, onChange) {
    const name = newId("choice");
    this.inputs = options.map(([value]) => h("input", { type: "radio", name, value, id: `${name}-${value}`, onchange: () => onChange(value) }));
    this.element = h(
      "div",
      { class: "choice", role: "radiogroup", "aria-label": label },
      options.map(([value, text], at) => [this.inputs[at], h("label", { for: `${name}-${value}` }, text)]),
    );
    this.value = options[0][0];
  }

  get value() {
    return this.inputs.find((each) => each.checked)?.value ?? "";
  }

  set value(value) {
    for (const each of this.inputs) each.checked = each.value === value;
  }
}

/** Something that is on or off. @returns {{element: HTMLElement, input: HTMLInputElement}} */
export function toggle(text, on, onChange = (_on) => {}) {
  const input = h("input", { type: "checkbox", class: "switch", role: "switch", onchange: () => onChange(input.checked) });
  input.checked = on;
  return { input, element: h("label", { class: "switched" }, input, h("span", {}, text)) };
}
