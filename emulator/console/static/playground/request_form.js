// What is asked: a kind of request, its prompt, its parameters (which stand apart); all of it as a body.

import { Choice, toggle } from "../page/choice.js";
import { fill, h, newId } from "../page/dom.js";
import { ExtraFields } from "./extra_fields.js";
import { FaultChoice } from "./fault_choice.js";
import { JobOptions } from "./job_options.js";
import { JsonInput } from "./json_input.js";
import { Messages } from "./messages.js";
import { Parameters } from "./parameters.js";
import { turnsOf, turnsToBody } from "../answer/turns.js";

/** @type {[string, string][]} Each kind of request, and its name. */
const KINDS = [
  ["job", "RunPod job"],
  ["completion", "Completion"],
  ["chat", "Chat"],
  ["response", "Response"],
  ["message", "Message"],
];
const ROUTES = {
  "/v1/completions": "completion",
  "/v1/chat/completions": "chat",
  "/v1/responses": "response",
  "/v1/messages": "message",
};

// The fields of a job and of the other bodies that have places of their own in the form.
const JOB_FIELDS = ["prompt", "messages", "model", "apply_chat_template", "sampling_params", "enable_validation", "validation"];
const BODY_FIELDS = ["prompt", "messages", "input", "instructions", "system", "model", "stream", "enable_validation", "validation"];

/** @typedef {"job"|"completion"|"chat"|"response"|"message"} Kind */
/** @typedef {{kind: Kind, path: string, body: any, stream: boolean, hasEngine?: boolean, fault?: string,
 *   turns?: import("../answer/turns.js").Turn[]}} Request */

export class RequestForm {
  /** @param {() => void} onEndpoint called when another handler's endpoint is selected */
  constructor(onEndpoint) {
    const promptId = newId("prompt");
    this.kinds = new Choice("Kind of request", KINDS, () => this.#showKind());
    this.shapes = new Choice("Input", [["prompt", "Prompt"], ["messages", "Messages"], ["json", "JSON"]], () => this.#showKind());
    this.prompt = h("textarea", { id: promptId, class: "prompt grows", rows: 5, placeholder: "Write a prompt" });
    this.messages = new Messages();
    this.json = new JsonInput();
    this.options = new JobOptions();
    this.extra = new ExtraFields();
    this.template = toggle("Chat template", true);
    this.stream = toggle("Stream", true, () => this.#showFaults());
    this.faults = new FaultChoice();
    this.validation = toggle("Validate", true);
    this.parameters = new Parameters();
    this.wrong = h("p", { class: "form-error", role: "alert", hidden: true });
    this.promptBox = h("div", { class: "stack tight" }, h("label", { for: promptId }, "Prompt"), this.prompt);
    const endpointId = newId("endpoint");
    this.endpoint = h("select", { id: endpointId, onchange: () => onEndpoint() });
    this.endpointRow = h("div", { class: "row", hidden: true }, h("label", { for: endpointId, class: "small muted" }, "Endpoint"), this.endpoint);
    const modelId = newId("model");
    this.model = h("select", { id: modelId });
    this.modelRow = h("div", { class: "row", hidden: true }, h("label", { for: modelId, class: "small muted" }, "Model"), this.model);
    this.jobRow = h("div", { class: "row" }, this.shapes.element, this.template.element);
    this.element = h(
      "div",
      { class: "stack" },
      this.kinds.element,
      this.endpointRow,
      this.modelRow,
      this.jobRow,
      this.promptBox,
      this.messages.element,
      this.extra.element,
      this.json.element,
      this.options.element,
      h("div", { class: "row" }, this.stream.element, this.validation.element),
      this.faults.element,
      this.wrong,
    );
    this.description = null;
    this.#showKind();
  }

  get kind() {
    return /** @type {Kind} */ (this.kinds.value);
  }

  get #isChat() {
    return ["chat", "response", "message"].includes(this.kind) || (this.kind === "job" && this.shapes.value === "messages");
  }

  get #isJson() {
    return this.kind === "job" && this.shapes.value === "json";
  }

  /** Take what the server says that may be asked. */
  describe(description) {
    if (this.description === null) {
      // A handler of the user's takes any input, and there is no model for the other forms.
      if (description.handler) this.shapes.value = "json";
      this.kinds.element.hidden = Boolean(description.handler);
      this.validation.input.checked = description.validation.default;
      this.template.input.checked = description.chat_template.default;
    }
    const { endpoint, endpoints, examples } = description;
    this.json.select(endpoint, examples?.inputs ?? []);
    this.endpointRow.hidden = endpoints.length < 2;
    fill(this.endpoint, endpoints.map((each) => h("option", { value: each, selected: each === endpoint }, each)));
    this.faults.describe(description.faults);
    this.description = description;
    this.#showKind();
  }

  /** Offer the models of a server, whose first one is the default. @param {string[]} names */
  setModels(names) {
    const selected = this.model.value;
    fill(this.model, names.map((name) => h("option", { value: name, selected: name === selected }, name)));
    this.#showModels();
  }

  #showModels() {
    this.modelRow.hidden = this.model.options.length < 2 || this.#isJson;
  }

  #showFaults() {
    // The fault of a job is that of /run, which returns JSON.
    this.faults.setStreamed(this.kind !== "job" && this.stream.input.checked);
  }

  #showKind() {
    const job = this.kind === "job";
    // The whole row, because an empty one would leave its gap.
    this.jobRow.hidden = !job || Boolean(this.description?.handler);
    const json = this.#isJson;
    this.template.element.hidden = this.#isChat || json;
    this.promptBox.hidden = this.#isChat || json;
    this.messages.element.hidden = !this.#isChat;
    this.json.element.hidden = this.options.element.hidden = !json;
    this.extra.element.hidden = json;
    this.stream.element.hidden = this.parameters.element.hidden = json;
    // A message has no place for the verdict.
    this.validation.element.hidden = json || this.kind === "message";
    this.complain(null, "");
    this.#showFaults();
    this.#showModels();
    if (this.description === null) return;
    const { forms, validation } = this.description;
    // A server that runs a user's handler has no model, and only the form for jobs.
    this.parameters.show(forms[this.kind]?.parameters ?? {}, this.kind === "message" ? {} : validation.options);
  }

  /** Return what is asked. Throws an Error whose `param` names what is wrong. @returns {Request} */
  request() {
    const fault = this.faults.value;
    return { ...this.#withoutFault(), ...(fault === "" ? {} : { fault }) };
  }

  /** @returns {Request} */
  #withoutFault() {
    const sampling = this.parameters.values();
    const validation = this.parameters.checkValues();
    const checks = Object.keys(validation).length ? { validation } : {};
    const stream = this.stream.input.checked;
    const form = this.description.forms[this.kind];
    if (form === undefined) throw new Error("This server has no model. Send a RunPod job.");
    const { path } = form;
    if (this.#isJson) return { kind: "job", path, body: { input: this.json.value, ...this.options.values() }, stream: false, hasEngine: this.description.model !== null };
    const model = this.model.value || this.description.model;
    const turns = this.#isChat ? this.messages.value : undefined;
    const asked = turns === undefined ? { prompt: this.prompt.value } : turnsToBody(this.kind, turns);
    if (this.kind !== "job") {
      // A message has no place for the verdict.
      const validates = this.validation.input.checked && this.kind !== "message" ? { enable_validation: true } : {};
      const fields = { model, ...asked, ...sampling, stream, ...validates, ...(this.kind === "message" ? {} : checks) };
      return { kind: this.kind, path, body: this.extra.addTo(fields), stream, turns };
    }
    // Left out where it is the server's default: true would also render what is rendered already.
    const applies = this.template.input.checked;
    const differs = !this.#isChat && applies !== this.description.chat_template.default;
    const template = differs ? { apply_chat_template: applies } : {};
    const fields = {
      ...asked,
      ...(model === this.description.model ? {} : { model }),
      ...template,
      sampling_params: { ...sampling, stream },
      enable_validation: this.validation.input.checked,
      ...checks,
    };
    return { kind: "job", path, body: { input: this.extra.addTo(fields) }, stream, turns };
  }

  /** Fill the form with a job's input, as far as it has a place in it; false where it has none. */
  load(input) {
    if (this.description?.handler) {
      this.json.value = input;
      return true;
    }
    if (typeof input !== "object" || input === null) return false;
    const { openai_route: route, openai_input: body } = input;
    const asked = route === undefined ? input : (body ?? {});
    if (route !== undefined && ROUTES[route] === undefined) return false;
    const turns = turnsOf(asked);
    const parameters = route === undefined ? (asked.sampling_params ?? {}) : asked;
    this.kinds.value = route === undefined ? "job" : ROUTES[route];
    this.shapes.value = turns ? "messages" : "prompt";
    this.#showKind();
    if (turns) this.messages.value = turns;
    else this.prompt.value = typeof asked.prompt === "string" ? asked.prompt : JSON.stringify(asked.prompt);
    this.template.input.checked = asked.apply_chat_template ?? this.description?.chat_template.default ?? true;
    this.model.value = [...this.model.options].some(({ value }) => value === asked.model) ? asked.model : (this.description?.model ?? "");
    this.stream.input.checked = Boolean(parameters.stream ?? asked.stream);
    this.#showFaults();
    this.validation.input.checked = asked.enable_validation ?? this.description?.validation.default ?? true;
    this.parameters.set(parameters, asked.validation ?? {});
    this.extra.load(asked, route === undefined ? JOB_FIELDS : [...BODY_FIELDS, ...this.parameters.known.keys()]);
    return true;
  }

  /** Put the turns of a chat into the form, which may show another kind of request by now. @param {Kind} kind */
  reply(kind, turns) {
    this.kinds.value = kind;
    this.shapes.value = "messages";
    this.messages.value = turns;
    this.#showKind();
  }

  /** Begin with a prompt. */
  example(kind, text) {
    this.kinds.value = kind;
    this.shapes.value = "prompt";
    this.#showKind();
    if (this.#isChat) this.messages.value = [{ role: "user", content: text }];
    else this.prompt.value = text;
  }

  /** Say what is wrong, at the parameter that it is about if there is one; "" is nothing. */
  complain(param, text) {
    const there = this.parameters.complain(text === "" ? null : param, text);
    this.wrong.textContent = there ? "" : text;
    this.wrong.hidden = there || text === "";
  }
}
