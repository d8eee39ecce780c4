// The engine: what it is, what it can do, how it is doing.

import { ask, told } from "../server/api.js";
import { fill, h, say } from "../page/dom.js";
import { count, duration, rate } from "../page/format.js";
import { onKey } from "../server/keys.js";
import { Polling } from "../page/polling.js";
import { Sparkline } from "./sparkline.js";
import { failureOf, onHealth } from "../server/status.js";

const EVERY_MS = 2000;
/** The capabilities of a backend, by their names in /console/description. */
const ABLE = {
  chat_template: "Chat template of the model",
  turns: "Chats of several turns",
  plain_prompts: "Prompts without a template",
  token_prompts: "Prompts as token ids",
  tokenize: "Tokenization",
  seed: "Seed",
  penalties: "Penalties",
  min_p: "min_p",
  ignore_eos: "ignore_eos",
  logit_bias: "logit_bias",
  prompt_truncation: "truncate_prompt_tokens",
  special_tokens: "skip_special_tokens",
  json_schema: "JSON Schema output",
  grammar: "Grammars",
  infill: "Fill-in-the-middle",
  embeddings: "Embeddings",
  rerank: "Reranking",
  draft: "Draft model",
  abort_in_prefill: "Stop during prefill",
};

const STATES = {
  ready: "loaded",
  loading: "loading",
  restarting: "being restarted",
  dead: "not available",
  unloaded: "loaded when it is requested",
};

export class EngineScreen {
  title = "Engine";

  constructor() {
    this.polling = new Polling(() => this.#look(), EVERY_MS);
    this.sparks = {
      perMinute: new Sparkline("Requests", "per minute", rate),
      tokens: new Sparkline("Tokens", "per second", rate),
      latency: new Sparkline("Latency", "average", duration),
      queue: new Sparkline("Waiting", "jobs and requests", (value) => count(Math.round(value))),
    };
    this.facts = h("dl", { class: "plain-facts" });
    this.able = h("ul", { class: "able" });
    this.notLoaded = h("li", { class: "muted" }, "The model is loading.");
    this.warnings = h("ul", { class: "issues" });
    this.calm = h("p", { class: "muted" }, "None: the engine supports every parameter.");
    this.trouble = h("p", { class: "form-error", role: "alert", hidden: true });
    this.slots = h("div", { class: "slots", role: "img" });
    this.slotWords = h("p", { class: "small muted" });
    this.models = h("dl", { class: "plain-facts" });
    this.modelsCard = card("Models", this.models);
    this.modelsCard.hidden = true;
    this.element = h(
      "div",
      { class: "engine" },
      h("h1", {}, "Engine"),
      this.trouble,
      h("section", { class: "sparks", "aria-label": "Load" }, Object.values(this.sparks).map((each) => h("div", { class: "card" }, each.element))),
      h(
        "div",
        { class: "stack" },
        card("Slots", this.slots, this.slotWords),
        card("Capabilities", this.able),
      ),
      h("div", { class: "stack" }, this.modelsCard, card("Model", this.facts), card("Unsupported parameters", this.warnings, this.calm)),
    );
    this.health = null;
    this.description = null;
    onHealth((health) => this.#drawHealth(health));
    onKey(() => this.#again());
  }

  show() {
    this.polling.start();
  }

  hide() {
    this.polling.stop();
  }

  #again() {
    this.description = null;
    this.polling.now();
  }

  async #look() {
    try {
      if (!this.description?.engine) {
        this.description = await ask("/console/description", { background: this.asked === true });
        this.#drawDescription(this.description);
      }
      this.asked = true;
      const { endpoint, model } = this.description;
      if (model === null) {
        // A server without a model has no `/system/status`.
        this.#complain("");
        return;
      }
      const [status, { jobs }] = await Promise.all([
        ask("/system/status", { background: true }),
        ask(`/v2/${endpoint}/health`, { background: true }),
      ]);
      const { performance: last } = status;
      this.sparks.perMinute.add(last.requests_per_minute);
      this.sparks.tokens.add(last.throughput_tokens_per_second);
      this.sparks.latency.add(last.avg_latency_ms);
      this.sparks.queue.add(jobs.inQueue + (this.health?.engine?.waiting ?? 0));
      this.uptime = status.uptime;
      this.#complain("");
    } catch (error) {
      this.asked = true;
      this.#complain(told(error));
    }
  }

  #complain(text) {
    // Each page says why an engine is dead or being restarted.
    const { handlers, jobs } = this.health ?? {};
    const said = text || failureOf(handlers) || jobs?.trouble || "";
    say(this.trouble, said);
    this.trouble.hidden = said === "";
  }

  #drawHealth(health) {
    this.health = health;
    if (!health.engine) {
      say(this.slotWords, "This server runs handlers and has no engine.");
      return;
    }
    const { slots, running, waiting, restarts, state } = health.engine;
    if (this.slots.children.length !== slots) fill(this.slots, Array.from({ length: slots }, () => h("span")));
    [...this.slots.children].forEach((each, at) => each.classList.toggle("busy", at < running));
    // The slots of an engine that does not run are not free.
    const isDown = state === "dead" || state === "restarting";
    const down = `The engine is ${STATES[state]}`;
    this.slots.classList.toggle("down", isDown);
    this.slots.setAttribute("aria-label", isDown ? down : `${running} of ${slots} slots are busy`);
    this.#drawModels(health.models ?? []);
    const again = restarts ? `, restarted ${restarts}×` : "";
    say(this.slotWords, `${isDown ? down : `${running} of ${slots} busy`}, ${count(waiting)} waiting${again}`);
    // A model that is not loaded has no capabilities to show.
    say(this.notLoaded, isDown ? `${down}.` : "The model is loading.");
  }

  #drawModels(models) {
    // A single model that stays loaded is described by its own card.
    this.modelsCard.hidden = models.length < 2 && models[0]?.state !== "unloaded";
    const rows = models.map(({ id, state, failure }) => h("div", {}, h("dt", {}, id), h("dd", { title: failure ?? "" }, STATES[state] ?? state)));
    fill(this.models, rows);
  }

  #drawDescription({ model, backend, endpoint, stream_mode: mode, engine, warnings }) {
    const rows = [
      ["Model", model],
      ["Backend", backend],
      ["Runtime", engine?.runtime || null],
      ["Context", engine ? `${count(engine.context_length)} tokens` : null],
      ["Slots", engine ? String(engine.slots) : null],
      ["Log-probabilities", engine ? (engine.max_logprobs ? `up to ${engine.max_logprobs} per token` : "none") : null],
      ["Embeddings", engine?.embedding_size ? `${count(engine.embedding_size)} dimensions` : null],
      ["Endpoint", endpoint],
      ["STREAM_MODE", mode],
    ];
    fill(this.facts, rows.filter(([, value]) => value !== null).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    const able = engine ? Object.entries(ABLE) : [];
    fill(this.able, able.map(([name, words]) => h("li", { class: engine[name] ? "yes" : "no" }, h("span", { class: "mark", "aria-hidden": "true" }, engine[name] ? "✓" : "–"), words, h("span", { class: "unseen" }, engine[name] ? " yes" : " no"))));
    if (!engine) fill(this.able, model === null ? h("li", { class: "muted" }, "There is no model.") : this.notLoaded);
    fill(this.warnings, warnings.map((each) => h("li", { class: "issue warn" }, each)));
    this.calm.hidden = warnings.length > 0 || !engine;
  }
}

function card(title, ...children) {
  return h("section", { class: "card", "aria-label": title }, h("h2", {}, title), children);
}
