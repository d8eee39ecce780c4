// Says on every page which engine is dead or being restarted, and why.

import { say } from "../page/dom.js";
import { announce } from "../page/notices.js";
import { onHealth } from "../server/status.js";

const WORDS = { dead: "is not available", restarting: "is being restarted" };
const box = /** @type {HTMLElement} */ (document.getElementById("engine-trouble"));
const text = /** @type {HTMLElement} */ (box.firstElementChild);
let announced = "";

/** Return a sentence for each engine that is dead or being restarted, from what /health says. */
export function troublesOf({ engine, models = engine ? [engine] : [] }) {
  return models.filter(({ state }) => state in WORDS).map(({ id, state, failure, trouble }) => {
    const reason = failure ?? trouble;
    const name = id === undefined ? "The engine" : `The engine of ${id}`;
    // Without a key, a server that requires one sends no reasons.
    return `${name} ${WORDS[state]}${reason ? `: ${reason}` : ""}.`;
  });
}

/** Draw the sentences. */
export function draw(health) {
  const troubles = troublesOf(health);
  box.hidden = troubles.length === 0;
  say(text, troubles.join("\n"));
  const states = JSON.stringify((health.models ?? [health.engine]).map((each) => each?.state));
  // Once for each state: the reason of a restart counts the seconds.
  if (troubles.length > 0 && states !== announced) announce(troubles.join(" "));
  announced = states;
}

onHealth(draw);
