// The turns of a chat: in the form of /v1/chat/completions here, and as each API has them in its body.

/** @typedef {{role: string, content: any, tool_calls?: any[], tool_call_id?: string}} Turn */

/** Return the part of a body that has the turns. @param {string} kind @param {Turn[]} turns */
export function turnsToBody(kind, turns) {
  if (kind === "message") return messageBody(turns);
  if (kind === "response") return { input: turns.flatMap(toItems) };
  return { messages: turns };
}

/** Return the turns in a body of any API; null if it has a prompt. @returns {Turn[]|null} */
export function turnsOf(body) {
  const { messages, input, instructions, system } = body;
  const first = textOf(instructions ?? system);
  const before = first === null ? [] : [{ role: "system", content: first }];
  if (typeof input === "string") return [...before, { role: "user", content: input }];
  if (Array.isArray(messages)) return [...before, ...messages.flatMap(fromMessage)];
  return Array.isArray(input) ? [...before, ...joinCalls(input.flatMap(fromItem))] : null;
}

/** Return the turn of an answer. @param {string} text @param {import("./model_answer.js").Call[]} calls @returns {Turn} */
export function answerTurn(text, calls) {
  if (calls.length === 0) return { role: "assistant", content: text };
  return { role: "assistant", content: text || null, tool_calls: calls.map(toCall) };
}

function toCall({ id, name, arguments: text }) {
  return { id, type: "function", function: { name, arguments: text } };
}

/** Return a turn as items of the Responses API. @param {Turn} turn @returns {any[]} */
function toItems({ role, content, tool_calls: calls = [], tool_call_id: id }) {
  if (role === "tool") return [{ type: "function_call_output", call_id: id, output: content }];
  const items = calls.map((call) => ({ type: "function_call", call_id: call.id, name: call.function.name, arguments: call.function.arguments }));
  return isEmpty(content) && items.length > 0 ? items : [{ role, content }, ...items];
}

function fromItem(item) {
  const { type, role, content, call_id: id, name, arguments: text, output } = item ?? {};
  if (type === "function_call") return [{ role: "assistant", content: null, tool_calls: [toCall({ id, name, arguments: text })] }];
  if (type === "function_call_output") return [{ role: "tool", tool_call_id: id, content: output }];
  return role ? [{ role, content }] : [];
}

/** The calls of one answer are items of their own, and one turn here. */
function joinCalls(turns) {
  const joined = [];
  for (const turn of turns) {
    const last = joined[joined.length - 1];
    if (turn.tool_calls && last?.role === "assistant") last.tool_calls = [...(last.tool_calls ?? []), ...turn.tool_calls];
    else joined.push({ ...turn });
  }
  return joined;
}

/** The Messages API has the instructions apart, calls as blocks, and their results in a turn of the user. */
function messageBody(turns) {
  const system = turns.filter(({ role }) => role === "system").map(({ content }) => content);
  const messages = [];
  for (const turn of turns.filter(({ role }) => role !== "system")) {
    const last = messages[messages.length - 1];
    const message = toMessage(turn);
    if (turn.role === "tool" && last?.isOfTools) last.content.push(...message.content);
    else messages.push(message);
  }
  const body = { messages: messages.map(({ role, content }) => ({ role, content })) };
  return system.length ? { system: system.join("\n\n"), ...body } : body;
}

function toMessage({ role, content, tool_calls: calls = [], tool_call_id: id }) {
  if (role === "tool") return { role: "user", content: [{ type: "tool_result", tool_use_id: id, content }], isOfTools: true };
  if (calls.length === 0) return { role, content };
  const blocks = typeof content === "string" && content !== "" ? [{ type: "text", text: content }] : (content || []);
  return { role, content: [...blocks, ...calls.map((call) => ({ type: "tool_use", id: call.id, name: call.function.name, input: JSON.parse(call.function.arguments) }))] };
}

/** Return the turns of a message of any API. @returns {Turn[]} */
function fromMessage(message) {
  const { role, content } = message ?? {};
  const blocks = Array.isArray(content) ? content : [];
  const [calls, results] = ["tool_use", "tool_result"].map((type) => blocks.filter((block) => block?.type === type));
  if (calls.length === 0 && results.length === 0) return [message];
  const rest = blocks.filter((block) => ![...calls, ...results].includes(block));
  /** @type {Turn[]} */
  const turns = results.map((block) => ({ role: "tool", tool_call_id: block.tool_use_id, content: textOf(block.content) ?? "" }));
  if (calls.length > 0) {
    turns.push({ role, content: textOf(rest), tool_calls: calls.map(({ id, name, input }) => toCall({ id, name, arguments: JSON.stringify(input) })) });
  } else if (rest.length > 0) turns.push({ role, content: rest });
  return turns;
}

/** The text of a content that has nothing else; null if it has. */
function textOf(content) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content) || content.length === 0) return null;
  return content.map((block) => block?.text ?? "").join("");
}

function isEmpty(content) {
  return content === null || content === undefined || content === "";
}
