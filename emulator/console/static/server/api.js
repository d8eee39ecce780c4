// Calls of the server: its errors as one kind of exception, a key where it asks for one.

import { askKey, key, keyHeaders } from "./keys.js";

/** What the server answered instead: its own sentence, and which field it is about. */
export class ApiError extends Error {
  constructor(status, message, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

/**
 * @typedef {{method?: string, body?: any, accept?: string, signal?: AbortSignal,
 *   headers?: Record<string, string>, background?: boolean, wire?: import("../wire/wire_log.js").WireLog}} CallOptions
 */

/**
 * Make a call and return its response. In the foreground a missing key is asked for, and the call
 * made again; in the background it is an error like any other.
 * @param {string} path @param {CallOptions} [options]
 * @returns {Promise<Response>}
 */
export async function send(path, options = {}) {
  for (;;) {
    const used = key();
    const response = await once(path, options);
    if (response.ok) return response;
    if (response.status !== 401 || options.background) throw await problem(response);
    // It may have been given while this call was under way.
    if (key() === used && !(await askKey(used !== null))) throw await problem(response);
  }
}

/** Make a call once. @param {string} path @param {CallOptions} options @returns {Promise<Response>} */
async function once(path, { body, method = body === undefined ? "GET" : "POST", accept, signal, headers: extraHeaders, wire }) {
  /** @type {Record<string, string>} */
  const headers = { accept: accept ?? "application/json", ...extraHeaders, ...keyHeaders() };
  let content;
  if (body instanceof FormData) content = body;
  else if (body !== undefined) {
    headers["content-type"] = "application/json";
    content = JSON.stringify(body);
  }
  const exchange = wire?.begin(method, path, headers, content);
  try {
    const response = await fetch(path, { method, headers, body: content, signal, cache: "no-store" });
    return exchange === undefined ? response : exchange.receive(response);
  } catch (error) {
    exchange?.fail(error);
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
}

/** Make a call and return the JSON it is answered with. */
export async function ask(path, options = {}) {
  return (await send(path, options)).json();
}

/** Read what went wrong from a response that is no success. */
export async function problem(response) {
  const text = await response.text();
  try {
    const { error, param } = JSON.parse(text);
    if (typeof error === "string") return new ApiError(response.status, error, param ?? null);
    return new ApiError(response.status, error.message, error.param ?? null);
  } catch {
    return new ApiError(response.status, text.slice(0, 300) || `The server answered with status ${response.status}.`);
  }
}

/** What an exception says to people. */
export function told(error) {
  return error instanceof Error ? error.message : String(error);
}
