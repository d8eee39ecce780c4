// How the server is, in the corner of every screen and for whoever else wants to know.

import { say } from "../page/dom.js";
import { keyHeaders, onKey } from "./keys.js";
import { Polling } from "../page/polling.js";

const EVERY_MS = 2000;
const WORDS = {
  ok: "Ready",
  loading: "Loading",
  restarting: "Restarting",
  degraded: "Degraded",
  draining: "Shutting down",
  unavailable: "Unavailable",
};
// Of a server that runs a handler: what `degraded` and `loading` mean there.
const HANDLER_WORDS = { starting: "Handler starting", failed: "Handler failed", outdated: "Older code runs" };
const pill = /** @type {HTMLElement} */ (document.getElementById("status"));
const text = /** @type {HTMLElement} */ (document.getElementById("status-text"));

/** @type {Set<(health: any) => void>} */
const listeners = new Set();
let latest = null;

/** Call `listener` with what /health says, now and whenever it is asked again. */
export function onHealth(listener) {
  listeners.add(listener);
  if (latest !== null) listener(latest);
}

/** Return why one of the user's handlers did not start; undefined if none has failed. */
export function failureOf(handlers) {
  return handlers?.find(({ failure }) => failure)?.failure.reason;
}

async function look() {
  let health;
  try {
    // Without a key, a server that requires one sends its state and no reasons.
    health = await (await fetch("/health", { cache: "no-store", headers: keyHeaders() })).json();
  } catch {
    health = null;
  }
  pill.dataset.state = health?.status ?? "unreachable";
  say(text, health === null ? "Unreachable" : statusWord(health));
  pill.title = health === null ? "" : describeWork(health);
  if (health === null) return;
  pill.setAttribute("href", health.handler ? "#/workers" : "#/engine");
  latest = health;
  for (const listener of listeners) listener(health);
}

function statusWord({ status, handlers = [] }) {
  const state = status === "loading" ? "starting" : handlers.map((each) => each.state).find((each) => ["failed", "outdated"].includes(each));
  const isOfHandler = handlers.length > 0 && ["degraded", "loading"].includes(status);
  return (isOfHandler && HANDLER_WORDS[state]) || (WORDS[status] ?? status);
}

/** Return what runs: the engine's slots, or the user's handlers on a server that has no engine. */
function describeWork({ engine, handlers = [], model }) {
  if (!engine) return failureOf(handlers) ?? handlers.map(({ file, image }) => image ?? file ?? "").join(", ");
  const name = model ? `${model}: ` : "";
  const state = { dead: "not available", restarting: "being restarted" }[engine.state];
  if (state !== undefined) return engine.failure || engine.trouble || `The engine is ${state}`;
  return engine.failure || engine.trouble || `${name}${engine.running} of ${engine.slots} slots busy`;
}

const polling = new Polling(look, EVERY_MS);
polling.start();
onKey(() => polling.now());
