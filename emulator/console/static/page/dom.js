// Elements made by hand. Whatever is text becomes a text node: nothing is ever read as markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * @typedef {Node|string|number|null|undefined|false|Child[]} Child what `h` puts into an element
 */

/**
 * Make an element. Properties that begin with "on" are listeners, `class` and the rest attributes;
 * null, undefined and false leave one out.
 * @param {string} tag
 * @param {Record<string, any>} [properties]
 * @param {...Child} children
 * @returns {any}
 */
export function h(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** The same for a drawing. */
export function svg(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

/** A line icon from its path, of 20 by 20. */
export function icon(path) {
  return svg("svg", { viewBox: "0 0 20 20", "aria-hidden": "true" }, svg("path", { d: path }));
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  put(element, children);
  return element;
}

function put(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Put other children in the place of those an element has. */
export function fill(element, ...children) {
  element.replaceChildren();
  put(element, children);
  return element;
}

/** Say something else, without touching what says it already. */
export function say(element, text) {
  const shown = String(text);
  if (element.textContent !== shown) element.textContent = shown;
}

let made = 0;

/** An id that no other element has. */
export function newId(prefix) {
  made += 1;
  return `${prefix}-${made}`;
}
