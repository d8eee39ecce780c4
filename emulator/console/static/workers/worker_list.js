// The list of an endpoint's workers, including those that have ended while the page was open.

const MAX_ENDED = 20;
// How the log of a worker ends if the server stopped it, or if it had nothing to do.
const ORDERLY_END = / (exited with code 0|was killed by SIGTERM)$/;

/**
 * Return the workers that the server lists, followed by those of the last list that have ended, the
 * newest first. The server keeps the logs of 20 ended workers, so the list has no more.
 * @param {any[]} before
 * @param {any[]} listed
 */
export function addEnded(before, listed) {
  const names = new Set(listed.map((each) => each.id));
  const missing = before.filter((each) => !names.has(each.id));
  const justEnded = missing.filter((each) => each.status !== "ENDED");
  const endedBefore = missing.filter((each) => each.status === "ENDED");
  const ended = [...justEnded.map((each) => ({ ...each, status: "ENDED" })), ...endedBefore];
  return [...listed, ...ended.slice(0, MAX_ENDED)];
}

/** Return whether the last line of a worker's log describes an end without an error. */
export function isOrderlyEnd(line) {
  return ORDERLY_END.test(line);
}
