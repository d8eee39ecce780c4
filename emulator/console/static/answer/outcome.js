// How an answer ended, told alike whichever route it came by.

/**
 * @typedef {{json: any, raw: string|null, text: string|null, finish: string|null,
 *   reasoning: string|null, calls: import("./model_answer.js").Call[],
 *   stop: string|number|null, validation: any, warnings: string[], redacted: any, blocked: boolean,
 *   tokens: {input: number, output: number}|null, perSecond: number|null}} Outcome
 */

/** From a job's output; the last element where its worker streamed a list. @returns {Outcome} */
export function ofJob(output) {
  const json = output;
  const last = Array.isArray(output) ? output[output.length - 1] : output;
  if (typeof last !== "object" || last === null) return bare(json);
  if (last.object === "response" && Array.isArray(last.output)) return { ...ofResponse(last, null), json };
  if (last.type === "message" && last.role === "assistant" && Array.isArray(last.content)) return { ...ofMessage(last, null), json };
  if (!Array.isArray(last.choices)) return bare(json);
  if (last.choices[0]?.deltas === undefined && last.usage?.input === undefined) return { ...ofOpenAI(last, null), json };
  const choice = last.choices[0];
  const usage = last.usage ?? null;
  return {
    ...bare(json),
    raw: choice.deltas ? afterReasoning(choice.deltas.join(""), choice.reasoning) : null,
    reasoning: choice.reasoning ?? null,
    text: choice.text ?? null,
    finish: choice.finish_reason ?? null,
    stop: choice.stop_reason ?? null,
    validation: last.validation ?? null,
    warnings: last.warnings ?? [],
    redacted: last.redacted ?? null,
    blocked: last.blocked === true,
    tokens: usage && { input: usage.input, output: usage.output },
    perSecond: last.timings?.tokens_per_second ?? null,
  };
}

/** From OpenAI's answer; `raw` is what was streamed of it, null where it came whole. @returns {Outcome} */
export function ofOpenAI(json, raw) {
  const choice = json.choices?.[0];
  if (choice === undefined) return bare(json);
  const usage = json.usage ?? null;
  const text = choice.text ?? choice.message?.content ?? null;
  return {
    ...bare(json),
    raw,
    reasoning: choice.message?.reasoning_content ?? null,
    calls: callsOf(choice.message?.tool_calls),
    // A stream tells the model's own words, and never what sanitising leaves of them.
    text: raw === null ? text : null,
    finish: choice.finish_reason ?? null,
    stop: choice.stop_reason ?? null,
    validation: choice.validation ?? json.validation ?? null,
    warnings: [...(json.warnings ?? []), ...(choice.warnings ?? [])],
    redacted: choice.redacted ?? json.redacted ?? null,
    blocked: choice.blocked === true || json.blocked === true,
    tokens: usage && { input: usage.prompt_tokens, output: usage.completion_tokens },
  };
}

/** From a response of /v1/responses; `raw` is what was streamed of it. @returns {Outcome} */
export function ofResponse(json, raw) {
  const items = json.output ?? [];
  const texts = items.filter(({ type }) => type === "message").flatMap(({ content }) => content);
  const thoughts = items.filter(({ type }) => type === "reasoning").flatMap(({ content, summary }) => (content?.length ? content : (summary ?? [])));
  return {
    ...bare(json),
    raw,
    text: raw === null ? texts.map(({ text }) => text).join("") : null,
    reasoning: thoughts.map(({ text }) => text).join("\n\n") || null,
    calls: callsOf(items.filter(({ type }) => type === "function_call")),
    finish: json.incomplete_details?.reason ?? json.status,
    validation: json.validation ?? null,
    warnings: json.warnings ?? [],
    redacted: json.redacted ?? null,
    blocked: json.blocked === true,
    tokens: json.usage && { input: json.usage.input_tokens, output: json.usage.output_tokens },
  };
}

/** From a message of /v1/messages; `raw` is what was streamed of it. @returns {Outcome} */
export function ofMessage(json, raw) {
  const usage = json.usage ?? null;
  return {
    ...bare(json),
    raw,
    text: raw === null ? json.content.map(({ text }) => text ?? "").join("") : null,
    reasoning: json.content.map(({ thinking }) => thinking ?? "").join("") || null,
    calls: callsOf(json.content.filter((block) => block?.type === "tool_use")),
    finish: json.stop_reason ?? null,
    stop: json.stop_sequence ?? null,
    // The tokens that the cache had are counted apart.
    tokens: usage && { input: usage.input_tokens + (usage.cache_read_input_tokens ?? 0), output: usage.output_tokens },
  };
}

/**
 * The tool calls of an answer of any API, alike.
 * @param {any[]|undefined} calls @returns {import("./model_answer.js").Call[]}
 */
export function callsOf(calls) {
  return (calls ?? []).filter(Boolean).map(({ id, call_id, function: called, name, arguments: text, input }) => ({
    id: call_id ?? id ?? "",
    name: called?.name ?? name ?? "",
    arguments: called?.arguments ?? text ?? JSON.stringify(input ?? {}),
  }));
}

// The marks between the reasoning and the answer, of all forms that the engine knows.
const END_OF_REASONING = /^\s*(<\/[\w:]+>|\[\/THINK\]|<channel\|>|<\|end\|>(<\|start\|>assistant)?<\|channel\|>final<\|message\|>)?/;

/** The answer in what a model wrote, without the reasoning before it. */
function afterReasoning(raw, reasoning) {
  if (!reasoning) return raw;
  return raw.slice(raw.indexOf(reasoning) + reasoning.length).replace(END_OF_REASONING, "").trimStart();
}

function bare(json) {
  return {
    json, raw: null, reasoning: null, text: null, calls: [], finish: null, stop: null, validation: null, warnings: [],
    redacted: null, blocked: false, tokens: null, perSecond: null,
  };
}
