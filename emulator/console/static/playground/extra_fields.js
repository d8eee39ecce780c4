// The fields of a body that have no place of their own in the form, such as the tools of a chat.

import { h, newId } from "../page/dom.js";

export class ExtraFields {
  constructor() {
    const [id, hintId] = [newId("extra"), newId("hint")];
    this.box = h("textarea", { id, rows: 3, class: "mono grows", spellcheck: "false", placeholder: '{"tools": […]}', "aria-describedby": hintId });
    this.element = h(
      "details",
      {},
      h("summary", {}, "Other fields"),
      h(
        "div",
        { class: "field json" },
        h("div", { class: "field-head" }, h("label", { for: id }, "other fields"), h("span", { class: "hint", id: hintId }, "a JSON object, such as tools, that is added to the body")),
        this.box,
      ),
    );
  }

  /** Return the fields with the others added. Throws an Error if there is no object, or a field that the form has. */
  addTo(fields) {
    const text = this.box.value.trim();
    if (text === "") return fields;
    const extra = read(text);
    const twice = Object.keys(extra).find((name) => Object.hasOwn(fields, name));
    if (twice !== undefined) throw new Error(`The form has a place for ${twice}, so it cannot be one of the other fields.`);
    return { ...fields, ...extra };
  }

  /** Show the fields of a body but these. @param {Record<string, any>} body @param {string[]} names */
  load(body, names) {
    const rest = Object.fromEntries(Object.entries(body).filter(([name]) => !names.includes(name)));
    const isEmpty = Object.keys(rest).length === 0;
    this.box.value = isEmpty ? "" : JSON.stringify(rest, null, 2);
    this.element.open = !isEmpty;
  }
}

function read(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`The other fields are not JSON: ${error.message}`);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error("The other fields must be a JSON object.");
  return value;
}
