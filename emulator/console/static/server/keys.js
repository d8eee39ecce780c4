// The API key: asked for when the server wants one, kept in this tab and nowhere else.

const PLACE = "api-key";

const dialog = /** @type {HTMLDialogElement} */ (document.getElementById("key-dialog"));
const form = /** @type {HTMLFormElement} */ (document.getElementById("key-form"));
const input = /** @type {HTMLInputElement} */ (document.getElementById("key-input"));
const why = /** @type {HTMLElement} */ (document.getElementById("key-why"));
const button = /** @type {HTMLElement} */ (document.getElementById("key-button"));
const forget = /** @type {HTMLElement} */ (document.getElementById("key-forget"));

const WANTED = "This server requires an API key: one of its API_KEYS.";
const REFUSED = "The server refused this key. Enter another one.";
const KNOWN = "A key is stored in this tab.";
const OPTIONAL = "A key is needed only if the server has API_KEYS set.";

/** @type {((given: boolean) => void)[]} */
let waiting = [];
const listeners = new Set();

/** The key, or null where none was given. */
export function key() {
  return sessionStorage.getItem(PLACE);
}

/** The headers that carry it. @returns {Record<string, string>} */
export function keyHeaders() {
  const known = key();
  return known === null ? {} : { authorization: `Bearer ${known}` };
}

/** Call `listener` whenever another key is used. */
export function onKey(listener) {
  listeners.add(listener);
}

/** Ask for a key; true when one was given, false when not now. Who asks meanwhile shares it. */
export function askKey(refused = key() !== null) {
  return open(refused ? REFUSED : WANTED, refused);
}

function open(text, wrong) {
  return new Promise((resolve) => {
    waiting.push(resolve);
    if (dialog.open) return;
    why.textContent = text;
    why.classList.toggle("wrong", wrong);
    input.value = "";
    dialog.showModal();
    input.focus();
  });
}

function settle(given) {
  const told = waiting;
  waiting = [];
  input.value = "";
  dialog.close();
  show();
  for (const resolve of told) resolve(given);
}

function show() {
  forget.hidden = key() === null;
  button.classList.toggle("on", key() !== null);
  button.setAttribute("aria-label", key() === null ? "API key" : "API key (one is stored)");
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const given = input.value.trim();
  if (given === "") return;
  sessionStorage.setItem(PLACE, given);
  settle(true);
  for (const listener of listeners) listener();
});
document.getElementById("key-cancel")?.addEventListener("click", () => settle(false));
forget.addEventListener("click", () => {
  sessionStorage.removeItem(PLACE);
  settle(false);
});
dialog.addEventListener("cancel", (event) => {
  event.preventDefault();
  settle(false);
});
button.addEventListener("click", () => open(key() === null ? OPTIONAL : KNOWN, false));
show();
