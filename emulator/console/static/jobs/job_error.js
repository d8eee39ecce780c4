// The error of a failed job, taken apart: a headline, the traceback, and the facts about the worker.

const FACTS = ["hostname", "worker_id", "runpod_version"];
const TRACEBACK = /(?:^|\n)(?:traceback: )?(?=Traceback \(most recent call last\):)/;
const FRAME = /^\s+File "([^"]*)", line \d+/;
const LIBRARY = /[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d|^<frozen /i;
// Of a longer traceback, so many lines at the end and half as many at the start are shown.
const MAX_END_LINES = 200;
const MAX_LINE_CHARS = 1_000;
export const MAX_HEADLINE_CHARS = 4_000;

/** @typedef {{headline: string, traceback: string, facts: [string, string][]}} JobError */

/**
 * Return the parts of an error. RunPod's SDK sends an exception as the text of a JSON object, and that
 * of a generator as a message with a traceback.
 * @param {string} error @returns {JobError}
 */
export function readJobError(error) {
  const fields = readObject(error);
  if (fields === null) return readText(error);
  const { error_type: type, error_message: message, error_traceback: traceback } = fields;
  if (type === undefined && message === undefined && traceback === undefined) {
    return { headline: JSON.stringify(fields, null, 2), traceback: "", facts: [] };
  }
  const parts = [typeName(text(type)), text(message).trim()].filter((part) => part !== "");
  return {
    headline: parts.join(": ") || lastLine(text(traceback)) || error,
    traceback: text(traceback).trimEnd(),
    facts: FACTS.filter((name) => fields[name] !== undefined).map((name) => [name, text(fields[name])]),
  };
}

function readText(error) {
  const match = TRACEBACK.exec(error);
  if (match === null) return { headline: error, traceback: "", facts: [] };
  const before = error.slice(0, match.index).trim();
  const traceback = error.slice(match.index + match[0].length).trimEnd();
  // The SDK's own words before the traceback are its message again, without the type.
  const isOfSdk = before === "" || before.startsWith("handler: ");
  return { headline: isOfSdk ? lastLine(traceback) : before, traceback, facts: [] };
}

function readObject(error) {
  if (!error.startsWith("{")) return null;
  try {
    return JSON.parse(error);
  } catch {
    return null;
  }
}

function text(value) {
  if (value === undefined || value === null) return "";
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** Return `ValueError` of `<class 'ValueError'>`. */
function typeName(type) {
  return /^<class '(?:__main__\.)?(.+)'>$/.exec(type)?.[1] ?? type;
}

/** Return the line of a traceback that names the exception: the last one that is not indented. */
function lastLine(traceback) {
  const lines = traceback.trimEnd().split("\n").filter((line) => line !== "" && !/^\s/.test(line));
  return lines[lines.length - 1] ?? "";
}

/**
 * Return the lines of a traceback, each with whether it belongs to a frame of the user's own code.
 * The middle of a long one is left out.
 * @returns {{line: string, isOwn: boolean}[]}
 */
export function tracebackLines(traceback) {
  let isOwn = false;
  const lines = traceback.split("\n").map((line) => {
    const frame = FRAME.exec(line);
    if (frame !== null) isOwn = !LIBRARY.test(frame[1]);
    else if (!/^\s/.test(line)) isOwn = false;
    const shown = line.length > MAX_LINE_CHARS ? `${line.slice(0, MAX_LINE_CHARS)}…` : line;
    return { line: shown, isOwn };
  });
  const start = MAX_END_LINES / 2;
  const hidden = lines.length - MAX_END_LINES - start;
  if (hidden <= 0) return lines;
  return [...lines.slice(0, start), { line: `… ${hidden} lines are not shown; Copy has all …`, isOwn: false }, ...lines.slice(-MAX_END_LINES)];
}
