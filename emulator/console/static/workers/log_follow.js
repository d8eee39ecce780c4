// Follow the log of a worker until the worker has ended. After a break, resume after the last line.

import { ApiError, send, told } from "../server/api.js";
import { events } from "../server/sse.js";

const TAIL_LINES = 1000;
/** As many lines as the server keeps of a worker. */
export const MAX_TAIL_LINES = 5000;
const RETRY_MS = 1000;
const MAX_RETRY_MS = 10_000;

/**
 * Follow a worker's log. Resolves when the worker has ended and all its lines were read. Throws an
 * error that a retry does not change, such as a worker that the server does not know.
 * @param {string} endpoint
 * @param {string} worker
 * @param {{onLine: (line: import("./log_line.js").LogLine) => void,
 *   onConnect?: () => void, onBreak?: (reason: string) => void, signal?: AbortSignal,
 *   retryMs?: number, tail?: number}} options
 */
export async function followLog(endpoint, worker, { onLine, onConnect, onBreak, signal, retryMs = RETRY_MS, tail = TAIL_LINES }) {
  const [endpointPart, workerPart] = [endpoint, worker].map(encodeURIComponent);
  const path = `/v2/serverless/${endpointPart}/workers/${workerPart}/logs?tail=${tail}`;
  let lastEventId = "";
  let delayMs = retryMs;
  for (let isRetry = false; ; isRetry = true) {
    try {
      /** @type {Record<string, string>} */
      const headers = lastEventId === "" ? {} : { "last-event-id": lastEventId };
      const response = await send(path, { accept: "text/event-stream", headers, signal, background: isRetry });
      onConnect?.();
      for await (const { event, data, id } of events(response.body)) {
        // One part of the body may have many events, which an abort does not take back.
        signal?.throwIfAborted();
        if (event === "closing") throw new ApiError(0, "The server is shutting down.");
        onLine(JSON.parse(data));
        lastEventId = id;
        delayMs = retryMs;
      }
      return;
    } catch (error) {
      if (signal?.aborted || !isTransient(error)) throw error;
      onBreak?.(error instanceof ApiError ? told(error) : "The connection to the server was lost.");
    }
    await pause(delayMs, signal);
    delayMs = Math.min(delayMs * 2, MAX_RETRY_MS);
  }
}

/** Return whether a retry may succeed. Browsers report a body that breaks off as a TypeError. */
function isTransient(error) {
  if (!(error instanceof ApiError)) return error instanceof TypeError;
  return error.status === 0 || error.status === 429 || error.status >= 500;
}

/** Wait, or throw the signal's reason as soon as it is aborted. */
function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve(undefined);
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}
