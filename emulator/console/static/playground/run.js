// One request under way, of any kind: sent, heard to its end, or stopped.

import { ApiError, ask, send } from "../server/api.js";
import { Assembly } from "../answer/assembly.js";
import { MessageAssembly, ResponseAssembly } from "../answer/event_assembly.js";
import { follow } from "../jobs/job_follow.js";
import { JobOutput } from "../jobs/job_output.js";
import { ofMessage, ofOpenAI, ofResponse } from "../answer/outcome.js";
import { events } from "../server/sse.js";
import { WireLog } from "../wire/wire_log.js";

/** How the answers of each API are read: whole, and from events up to the one that ends them. */
const APIS = {
  completion: { assembly: () => new Assembly(), outcome: ofOpenAI, isEnd: (data) => data === "[DONE]" },
  chat: { assembly: () => new Assembly(), outcome: ofOpenAI, isEnd: (data) => data === "[DONE]" },
  response: { assembly: () => new ResponseAssembly(), outcome: ofResponse, isEnd: (data) => data === "[DONE]" },
  message: { assembly: () => new MessageAssembly(), outcome: ofMessage, isEnd: (data) => JSON.parse(data).type === "message_stop" },
};

/**
 * `state` goes from "sending" by "queued" (jobs) and "running" to "done", "failed" or "stopped".
 * `onChange` is called whenever anything here is new.
 */
export class Run {
  /** @type {(value?: any) => void} */
  #know = () => {};

  /** @param {import("./request_form.js").Request} request @param {() => void} onChange */
  constructor(request, onChange) {
    this.request = request;
    this.onChange = onChange;
    this.began = performance.now();
    this.output = new JobOutput(request.hasEngine !== false, this.began);
    this.answer = this.output.answer;
    this.log = this.answer.log;
    this.wire = new WireLog(this.began, onChange);
    this.state = "sending";
    /** @type {any} The job's summary, where it is one. */
    this.job = null;
    /** @type {import("../answer/outcome.js").Outcome|null} */
    this.outcome = null;
    this.error = null;
    this.endedMs = null;
    this.stopping = false;
    this.abort = new AbortController();
    // A job that is being sent may be queued by now, and can be taken back when its id is known.
    this.known = new Promise((resolve) => {
      this.#know = resolve;
    });
  }

  get over() {
    return this.endedMs !== null;
  }

  /** Send it and return at its end, however that comes. */
  async go() {
    try {
      const ended = this.request.kind === "job" ? await this.#asJob() : await this.#asCall();
      this.#end(ended);
    } catch (error) {
      if (this.state === "stopped" || (error instanceof DOMException && error.name === "AbortError")) this.#end("stopped");
      else {
        this.error = error instanceof ApiError ? error : new ApiError(0, this.#explain(error));
        this.#end("failed");
      }
    }
  }

  /**
   * Stop it: a job is taken back, of all else the connection is closed. So is that of a job whose
   * id is still not known when this is asked again. Throws what the server says to it.
   */
  async stop() {
    if (this.over) return;
    const again = this.stopping && this.job === null;
    this.stopping = true;
    if (this.request.kind !== "job" || again) this.abort.abort();
    else {
      await this.known;
      if (!this.over) await ask(this.#of("cancel"), { method: "POST" });
    }
  }

  /** Request the job's /status, which a client would have polled, for the record of the exchanges. */
  async readStatus() {
    if (this.job === null) return;
    // What goes wrong is in that record, and changes nothing about the job.
    await ask(this.#of("status"), { background: true, wire: this.wire }).catch(() => {});
  }

  get #how() {
    const { fault } = this.request;
    return { signal: this.abort.signal, wire: this.wire, headers: fault === undefined ? {} : { "x-fault": fault } };
  }

  #of(operation) {
    return `/v2/${this.job.endpoint}/${operation}/${encodeURIComponent(this.job.id)}`;
  }

  #explain(error) {
    const broken = this.wire.exchanges.find(({ end }) => end?.state === "broken");
    if (broken !== undefined) return broken.end.reason;
    const isUnreadable = error instanceof SyntaxError || error instanceof TypeError;
    return isUnreadable ? `The answer cannot be read: ${error.message}` : error.message;
  }

  #become(state) {
    this.state = state;
    this.onChange();
  }

  #end(state) {
    this.endedMs = performance.now() - this.began;
    this.#know();
    this.#become(state);
  }

  /** @param {import("../answer/model_answer.js").Piece[]} pieces */
  #say(pieces) {
    for (const piece of pieces) this.answer.add(piece);
    if (this.state !== "running") this.#become("running");
    else this.onChange();
  }

  async #asCall() {
    const { kind, path, body, stream } = this.request;
    const api = APIS[kind];
    const accept = stream ? "text/event-stream" : "application/json";
    const response = await send(path, { body, accept, ...this.#how });
    if (!stream) {
      this.outcome = api.outcome(await response.json(), null);
      this.answer.end(this.outcome);
      return "done";
    }
    const assembly = api.assembly();
    try {
      for await (const event of events(response.body)) this.#take(event, api, assembly);
    } catch (error) {
      // What comes after the end of the answer does not change it.
      if (this.outcome === null) throw error;
    }
    if (this.outcome === null) throw new ApiError(0, "The connection ended before the answer did.");
    return "done";
  }

  #take({ event, data }, api, assembly) {
    // Events after the end are only shown as they were on the wire.
    if (this.outcome !== null) return;
    if (event === "closing") throw new ApiError(503, JSON.parse(data).error.message);
    if (api.isEnd(data)) {
      this.outcome = api.outcome(assembly.whole(), this.answer.text.text());
      this.answer.end(this.outcome);
      return;
    }
    const chunk = JSON.parse(data);
    if (chunk.error || chunk.type === "error") {
      const { code, message, param } = chunk.error ?? chunk;
      throw new ApiError(typeof code === "number" ? code : 500, message, param ?? null);
    }
    const pieces = assembly.add(chunk);
    this.answer.calls = assembly.calls;
    if (pieces.length > 0 || this.answer.calls.length > 0) this.#say(pieces);
  }

  async #asJob() {
    const { path, body } = this.request;
    const { id } = await ask(path, { body, ...this.#how });
    this.job = { id, endpoint: path.split("/")[2], status: "IN_QUEUE" };
    this.#know();
    this.#become("queued");
    const job = await follow(id, {
      wire: this.wire,
      onJob: (told) => {
        this.job = told;
        this.output.setJob(told);
        this.#become(told.status === "IN_QUEUE" ? "queued" : "running");
      },
      onSaid: (text) => this.#say([{ kind: "text", text }]),
      onChunk: (chunk) => {
        this.output.addChunk(chunk);
        this.#become("running");
      },
      onProgress: (progress) => {
        this.output.setProgress(progress);
        this.onChange();
      },
      onRestart: () => {
        this.output.clear();
        this.onChange();
      },
    });
    if (job === null) throw new ApiError(404, "The server no longer has this job.");
    this.job = job;
    this.output.end(job);
    this.outcome = this.output.outcome;
    if (job.status === "CANCELLED") return "stopped";
    if (job.status !== "COMPLETED") throw new ApiError(0, job.error ?? `The job is ${job.status}.`, this.output.isPlain ? null : paramOf(job.error));
    return "done";
  }
}

/** Which field a job's error is about: its first word, as everywhere here. */
function paramOf(error) {
  const found = /^(input[.\w[\]]*) /.exec(error ?? "");
  return found === null ? null : found[1];
}
