// A job followed to its end: its states and what it says, as /console/jobs tells them.

import { send } from "../server/api.js";
import { events } from "../server/sse.js";

/**
 * Follow a job; returns the whole job at its end, null when it is kept no more.
 * @param {string} id
 * @param {{onJob?: (job: any) => void, onSaid?: (text: string) => void, onChunk?: (chunk: any) => void,
 *   onProgress?: (progress: {output?: any, bytes?: number}) => void, onRestart?: () => void,
 *   signal?: AbortSignal, wire?: import("../wire/wire_log.js").WireLog}} listeners
 */
export async function follow(id, { onJob, onSaid, onChunk, onProgress, onRestart, signal, wire }) {
  const path = `/console/jobs/${encodeURIComponent(id)}`;
  const response = await send(path, { accept: "text/event-stream", signal, wire });
  for await (const { event, data } of events(response.body)) {
    const told = JSON.parse(data);
    if (event === "job") onJob?.(told);
    else if (event === "restart") onRestart?.();
    else if (event === "deltas") for (const text of told.texts) onSaid?.(text);
    else if (event === "chunk") onChunk?.(told.output);
    else if (event === "progress") onProgress?.(told);
    else if (event === "end") return told;
    else if (event === "gone") return null;
    else if (event === "closing") throw new Error("The server is shutting down.");
  }
  throw new Error("The connection to the server was lost.");
}
