// The time between deltas as bars, which show whether tokens come evenly.

import { h, say } from "../page/dom.js";
import { duration, plural } from "../page/format.js";
import { colour } from "../page/theme.js";

const BARS = 160;
const HEIGHT = 44;
const EVERY_MS = 100;

export class Rhythm {
  constructor() {
    this.canvas = h("canvas", { class: "rhythm-bars", "aria-hidden": "true" });
    this.words = h("p", { class: "small muted" });
    this.element = h("div", { class: "rhythm" }, this.canvas, this.words);
    this.log = null;
    this.drawnAt = 0;
    document.addEventListener("themechange", () => this.draw());
  }

  /** @param {import("./delta_log.js").DeltaLog|null} log */
  show(log) {
    this.log = log;
    this.draw();
  }

  /** Draw, but not too often. */
  changed() {
    if (performance.now() - this.drawnAt > EVERY_MS) this.draw();
  }

  draw() {
    this.drawnAt = performance.now();
    const log = this.log;
    if (this.element.hidden) return;
    const width = this.canvas.clientWidth;
    const scale = devicePixelRatio || 1;
    this.canvas.width = width * scale;
    this.canvas.height = HEIGHT * scale;
    if (log === null || log.count < 2) {
      say(this.words, "Each bar shows the time between two deltas.");
      return;
    }
    const from = Math.max(1, log.count - BARS);
    const gaps = [];
    for (let at = from; at < log.count; at += 1) gaps.push(log.gapMs(at));
    const sorted = [...gaps].sort((a, b) => a - b);
    const median = sorted[sorted.length >> 1];
    const most = sorted[sorted.length - 1];
    this.#bars(gaps, most, width, scale);
    say(
      this.words,
      `Last ${plural(gaps.length, "gap")} between deltas: median ${duration(median)}, max ${duration(most)}.`,
    );
  }

  #bars(gaps, most, width, scale) {
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.fillStyle = colour("accent");
    const step = width / BARS;
    gaps.forEach((gap, at) => {
      // Logarithmic: a pause of a second would make all others nothing.
      const height = Math.max(1, (Math.log1p(gap) / Math.log1p(Math.max(most, 1))) * HEIGHT);
      pen.fillRect(at * step, HEIGHT - height, Math.max(1, step - 1), height);
    });
  }
}
