// What is said in passing: a line that goes away, and what a screen reader is told.

import { h } from "./dom.js";

const SHOWN_MS = 4000;
const toasts = /** @type {HTMLElement} */ (document.getElementById("toasts"));
const announcer = /** @type {HTMLElement} */ (document.getElementById("announcer"));

/** Tell those who cannot see it. */
export function announce(text) {
  announcer.textContent = text;
}

/** Show a line for a while. @param {"plain"|"bad"} [kind] */
export function notice(text, kind = "plain") {
  const line = h("p", { class: `toast ${kind}` }, text);
  toasts.append(line);
  announce(text);
  setTimeout(() => line.remove(), SHOWN_MS);
}

/** Put text on the clipboard, and say so. */
export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    notice(`${what} copied.`);
  } catch {
    notice("The browser blocked copying. Open the console over HTTPS or on localhost.", "bad");
  }
}

/** Have the browser keep something as a file. @param {Blob} blob */
export function download(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
