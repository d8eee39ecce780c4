// What was on the wire as text: for the page, and whole for the clipboard.

import { bytes, count, plural } from "../page/format.js";

// Characters without a shape, and those that turn the order of others: shown by their numbers.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/** Return a text whose unseen characters are written as in a program. */
export function visible(text) {
  return text.replace(UNSEEN, (each) => {
    const code = each.charCodeAt(0);
    if (each === "\r") return "\\r";
    return code < 256 ? hex(code) : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/**
 * Return the text of a part, and how many of its bytes it leaves out. Bytes of a character that is
 * cut at either end are written as `\xNN`.
 * @param {import("./wire_log.js").Part} part
 */
export function textOf({ data, bytes: size }) {
  let from = 0;
  while (from < 3 && from < data.length && isContinuation(data[from])) from += 1;
  const to = endOfCharacters(data, from);
  const [before, after] = [data.subarray(0, from), data.subarray(to)].map((each) => [...each].map(hex).join(""));
  const text = visible(decoder.decode(data.subarray(from, to)));
  return { text: before + text + after, leftOut: size - data.length };
}

/** Return where the last whole character ends. */
function endOfCharacters(data, from) {
  for (let at = data.length - 1; at >= Math.max(from, data.length - 3); at -= 1) {
    if (isContinuation(data[at])) continue;
    const length = data[at] >= 0xf0 ? 4 : data[at] >= 0xe0 ? 3 : data[at] >= 0xc0 ? 2 : 1;
    return at + length > data.length ? at : data.length;
  }
  return data.length;
}

function isContinuation(byte) {
  return (byte & 0xc0) === 0x80;
}

function hex(byte) {
  return `\\x${byte.toString(16).padStart(2, "0")}`;
}

/** Return a moment as milliseconds since the request. */
export function moment(ms) {
  return `+${ms < 10 ? ms.toFixed(1) : count(Math.round(ms))} ms`;
}

/** Return the lines of a request's head. The key is replaced by a word. */
export function requestHead({ headers, hasKey }) {
  const key = hasKey ? ["authorization: (the key)"] : [];
  return [...headers.map(headerLine), ...key].join("\n");
}

/** Return the lines of a response's head. */
export function responseHead({ headers }) {
  return headers.map(headerLine).join("\n");
}

function headerLine([name, value]) {
  return visible(`${name}: ${value}`);
}

/** Return the body of a request, and how much is missing. */
export function requestBody({ body, bodyChars }) {
  return visible(body) + more(bodyChars - body.length, "character");
}

/** Return the state of an exchange in one sentence. */
export function stateOf({ end, head, sentMs, partCount, bytes: size }) {
  const amount = `${plural(partCount, "part")}, ${bytes(size)}`;
  if (end === null) return head === null ? "Waiting for the response." : `Open: ${amount} so far.`;
  const took = moment(end.ms - sentMs).slice(1);
  if (end.state === "complete") return `Complete: ${amount} in ${took}.`;
  return head === null ? `${end.reason} It took ${took}.` : `${end.reason} ${amount} had arrived in ${took}.`;
}

/** Return how many parts came before those that are kept; "" for none. */
export function leftOutOf({ leftOut }) {
  return leftOut === 0 ? "" : `${plural(leftOut, "earlier part")} ${leftOut === 1 ? "is" : "are"} not kept.`;
}

/** Return how much of something is not shown; "" for none. */
export function more(number, noun) {
  return number === 0 ? "" : `… (${plural(number, `more ${noun}`)})`;
}

/** Return all that is kept of an exchange as one text. */
export function transcript(exchange) {
  const { method, path, sentMs, head } = exchange;
  const lines = [`${moment(sentMs)} ${method} ${path}`, requestHead(exchange), "", requestBody(exchange), ""];
  if (head !== null) lines.push(`${moment(head.ms)} ${head.status} ${head.statusText}`.trim(), responseHead(head), "");
  const left = leftOutOf(exchange);
  if (left !== "") lines.push(left);
  for (const part of exchange.newest) {
    const { text, leftOut } = textOf(part);
    lines.push(`${moment(part.ms)} ${bytes(part.bytes)}`, text.trimEnd() + more(leftOut, "byte"));
  }
  lines.push("", stateOf(exchange));
  return `${lines.join("\n")}\n`;
}
