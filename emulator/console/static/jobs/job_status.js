// A job's state as a word with a colour.

import { h, say } from "../page/dom.js";

const WORDS = {
  IN_QUEUE: ["Queued", "waiting"],
  IN_PROGRESS: ["Running", "busy"],
  COMPLETED: ["Done", "good"],
  FAILED: ["Failed", "bad"],
  CANCELLED: ["Cancelled", "plain"],
  TIMED_OUT: ["Timed out", "bad"],
};

/** A badge whose `show` takes a status. */
export function statusBadge() {
  const badge = h("span", { class: "badge" });
  badge.show = (status) => {
    const [word, kind] = WORDS[status] ?? [status, "plain"];
    badge.className = `badge ${kind}`;
    say(badge, word);
  };
  return badge;
}
