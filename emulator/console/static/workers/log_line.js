// A line of a worker's log: what RunPod's SDK has written about a job, or anything else.

import { readJobError } from "../jobs/job_error.js";

const SDK_JSON = '{"requestId": ';
// The SDK's form where it does not run on RunPod: `INFO   | the job's id | the message`.
const SDK_TEXT = /^(DEBUG|INFO|WARN|ERROR|TRACE) *\| (?:([\w-]{1,100}) \| )?/;
const JOB_ENDS = ["Finished.", "Finished Job", "Finished running generator.", "Job stopped."];

/** @typedef {{ts: string, source: string, line: string, jobId?: string}} LogLine */

/** Return the job that a line names, its message, and the text to show. */
export function readLine(line) {
  const fields = line.startsWith(SDK_JSON) ? readObject(line) : null;
  if (typeof fields?.message === "string") {
    const job = typeof fields.requestId === "string" ? fields.requestId : null;
    const level = String(fields.level).slice(0, 10);
    return { job, message: fields.message, text: `${level.padEnd(7)}| ${job === null ? "" : `${job} | `}${readable(fields.message)}` };
  }
  const match = SDK_TEXT.exec(line);
  return { job: match?.[2] ?? null, message: match === null ? line : line.slice(match[0].length), text: line };
}

/** Return a message; of an exception that the SDK has written as JSON, its traceback. */
function readable(message) {
  return (message.startsWith("{") && readJobError(message).traceback) || message;
}

function readObject(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/**
 * Decides which lines of a log belong to a job: those that name it, and those without a job between
 * its first line and its last one, such as the handler's own prints.
 */
export class JobLines {
  /** @param {string} job the id of the job */
  constructor(job) {
    this.job = job;
    this.isRunning = false;
  }

  /** Return whether the next line of the log belongs to the job. @param {LogLine} line */
  includes({ source, line, jobId }) {
    const { job: named, message } = source === "system" ? { job: null, message: line } : readLine(line);
    // The server knows the job of a line while its worker runs only one.
    const job = jobId ?? named;
    if (job === null) return this.isRunning;
    if (job !== this.job) return false;
    this.isRunning = !JOB_ENDS.includes(message);
    return true;
  }
}
