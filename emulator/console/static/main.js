// The page: which screen is shown, by the part of the address behind "#".

import "./page/theme.js";
import "./engine/engine_trouble.js";
import { BatchesScreen } from "./batches/batches.js";
import { EngineScreen } from "./engine/engine.js";
import { JobsScreen } from "./jobs/jobs.js";
import { isWithin, placeOf } from "./page/place.js";
import { PlaygroundScreen } from "./playground/playground.js";
import { onHealth } from "./server/status.js";
import { WorkersScreen } from "./workers/workers.js";

const main = /** @type {HTMLElement} */ (document.getElementById("screen"));
/** @type {NodeListOf<HTMLAnchorElement>} */
const links = document.querySelectorAll(".places a");
const makers = {
  playground: PlaygroundScreen,
  jobs: JobsScreen,
  workers: WorkersScreen,
  batches: BatchesScreen,
  engine: EngineScreen,
};

const OF_AN_ENGINE = ["#/batches", "#/engine"];

/** Screens that were shown once; they keep what was typed and what is under way. */
const screens = new Map();
let current = null;

function go() {
  if (current !== null && isWithin(location.hash)) return;
  const { name, rest } = placeOf(location.hash, Object.keys(makers));
  if (!screens.has(name)) screens.set(name, new makers[name]());
  const next = screens.get(name);
  if (current !== next) {
    current?.hide();
    main.replaceChildren(next.element);
    if (current !== null) main.focus({ preventScroll: true });
    scrollTo(0, 0);
    current = next;
  }
  for (const link of links) {
    if (link.getAttribute("href") === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${next.title} · worker-rkllm`;
  next.show(rest);
}

onHealth(({ engine }) => {
  // A server that runs a handler has no engine, and runs no batches.
  for (const link of links) if (OF_AN_ENGINE.includes(link.getAttribute("href"))) link.hidden = !engine;
});
addEventListener("hashchange", go);
go();
