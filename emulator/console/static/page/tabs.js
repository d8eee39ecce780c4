// Several views of one thing, one of them at a time: arrows move, as everywhere.

import { h, newId, say } from "./dom.js";

export class Tabs {
  /** @param {string} label @param {{name: string, element: Element}[]} pages */
  constructor(label, pages) {
    this.pages = pages.map(({ name, element }) => this.#page(name, element));
    this.bar = h("div", { class: "tabs", role: "tablist", "aria-label": label }, this.pages.map((page) => page.tab));
    this.element = h("div", { class: "tabbed" }, this.bar, this.pages.map((page) => page.panel));
    this.bar.addEventListener("keydown", (event) => this.#move(event));
    this.onShow = (_name) => {};
    this.show(pages[0].name);
  }

  #page(name, element) {
    const [tabId, panelId] = [newId("tab"), newId("panel")];
    const badge = h("span", { class: "badge", hidden: true });
    const tab = h(
      "button",
      { type: "button", role: "tab", id: tabId, "aria-controls": panelId, onclick: () => this.show(name) },
      name,
      badge,
    );
    const panel = h("div", { role: "tabpanel", id: panelId, "aria-labelledby": tabId, class: "panel" }, element);
    return { name, tab, badge, panel };
  }

  show(name) {
    this.shown = name;
    for (const page of this.pages) {
      const on = page.name === name;
      page.tab.setAttribute("aria-selected", String(on));
      page.tab.tabIndex = on ? 0 : -1;
      page.panel.hidden = !on;
    }
    this.onShow?.(name);
  }

  /** Put a word beside a tab's name, or take it away. */
  badge(name, text) {
    const page = this.pages.find((each) => each.name === name);
    page.badge.hidden = text === "";
    say(page.badge, text);
  }

  /** Hide a tab, or show it again. */
  hide(name, isHidden) {
    const page = this.pages.find((each) => each.name === name);
    page.tab.hidden = isHidden;
    if (isHidden && this.shown === name) this.show(this.pages[0].name);
  }

  #move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const pages = this.pages.filter((page) => !page.tab.hidden);
    const at = pages.findIndex((page) => page.name === this.shown);
    const next = pages[(at + step + pages.length) % pages.length];
    this.show(next.name);
    next.tab.focus();
  }
}
