// The last minutes of a number as a line.

import { h, say, svg } from "../page/dom.js";

const POINTS = 90;
const [WIDTH, HEIGHT] = [240, 48];

export class Sparkline {
  /** @param {string} name @param {string} unit @param {(value: number) => string} shown */
  constructor(name, unit, shown) {
    this.name = name;
    this.shown = shown;
    /** @type {number[]} */
    this.values = [];
    this.line = svg("polyline", { class: "spark-line" });
    this.area = svg("polygon", { class: "spark-area" });
    this.now = h("span", { class: "spark-now" }, "–");
    this.most = h("span", { class: "small muted" });
    this.drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }, this.area, this.line);
    this.element = h("div", { class: "spark" }, h("div", { class: "row between" }, h("span", { class: "spark-name" }, name), this.most), h("p", {}, this.now, " ", h("span", { class: "muted" }, unit)), this.drawing);
    this.#draw();
  }

  /** @param {number} value */
  add(value) {
    this.values.push(value);
    if (this.values.length > POINTS) this.values.shift();
    this.#draw();
  }

  #draw() {
    const latest = this.values[this.values.length - 1];
    const most = Math.max(...this.values, 0);
    say(this.now, latest === undefined ? "–" : this.shown(latest));
    say(this.most, most > 0 ? `max ${this.shown(most)}` : "");
    this.drawing.setAttribute("aria-label", `${this.name}: ${this.now.textContent} now, max ${this.shown(most)}`);
    const step = WIDTH / (POINTS - 1);
    const from = WIDTH - (this.values.length - 1) * step;
    const points = this.values.map((value, at) => `${(from + at * step).toFixed(1)},${(HEIGHT - 2 - (value / (most || 1)) * (HEIGHT - 6)).toFixed(1)}`);
    this.line.setAttribute("points", points.join(" "));
    this.area.setAttribute("points", points.length ? `${from.toFixed(1)},${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}` : "");
  }
}
