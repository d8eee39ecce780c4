// A job followed to its end: its states and what it says, as /console/jobs tells them.

import { send } from "./api.js";
import { events } from "./sse.js";

/**
 * Follow a job; returns the whole job at its end, null when it is kept no more.
 * @param {string} id
 * @param {{onJob?: (job: any) => void, onSaid?: (text: string) => void, onRestart?: () => void,
 *   signal?: AbortSignal}} listeners
 */
export async function follow(id, { onJob, onSaid, onRestart, signal }) {
  const path = `/console/jobs/${encodeURIComponent(id)}`;
  const response = await send(path, { accept: "text/event-stream", signal });
  for await (const { event, data } of events(response.body)) {
    const told = JSON.parse(data);
    if (event === "job") onJob?.(told);
    else if (event === "restart") onRestart?.();
    else if (event === "deltas") for (const text of told.texts) onSaid?.(text);
    else if (event === "chunk") {
      for (const text of textsOf(told.output)) if (text !== "") onSaid?.(text);
    } else if (event === "end") return told;
    else if (event === "gone") return null;
    else if (event === "closing") throw new Error("The server is shutting down.");
  }
  throw new Error("The connection to the server was lost.");
}

/** The texts in a worker's chunk: the deltas of our own partial outputs, text, or JSON. */
function textsOf(output) {
  if (typeof output === "string") return [output];
  const choice = output?.choices?.[0];
  if (choice === undefined) return [`${JSON.stringify(output)}\n`];
  // The last chunk is the whole answer, whose text the chunks before it have.
  if (output.usage !== undefined) return [];
  return Array.isArray(choice.tokens) ? choice.tokens : [choice.text ?? ""];
}

/** What the log lacks of an answer that was told whole: it ended before it was looked at. */
export function missing(log, deltas) {
  const before = log.count;
  return Array.isArray(deltas) && before < deltas.length ? deltas.slice(before) : [];
}
