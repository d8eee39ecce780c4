// The exchanges of a request as they were on the wire: heads, bodies, and when each part arrived.

const MAX_PARTS = 500;
const MAX_PART_BYTES = 10_000;
const MAX_BODY_CHARS = 20_000;
const CLOSED_HERE = "The console closed the connection.";
const NEWLINE = 10;
const RETURN = 13;

/**
 * @typedef {{ms: number, bytes: number, data: Uint8Array}} Part an event, or what arrived of one;
 *   `bytes` is its size, of which `data` has the first 10,000
 */

export class WireLog {
  /** @param {number} began when the request was sent, by performance.now() @param {() => void} onChange */
  constructor(began, onChange = () => {}) {
    this.began = began;
    this.onChange = onChange;
    /** @type {Exchange[]} */
    this.exchanges = [];
  }

  /** Add a request that is being sent. */
  begin(method, path, headers, body) {
    const exchange = new Exchange(this, method, path, headers, body);
    this.exchanges.push(exchange);
    return exchange;
  }

  get nowMs() {
    return performance.now() - this.began;
  }
}

/** A request and its response. Times are milliseconds since the first request was sent. */
export class Exchange {
  /** @param {WireLog} log @param {Record<string, string>} headers @param {string} [body] */
  constructor(log, method, path, headers, body = "") {
    this.log = log;
    this.method = method;
    this.path = path;
    // The key must not get into a copy.
    this.headers = Object.entries(headers).filter(([name]) => name.toLowerCase() !== "authorization");
    this.hasKey = this.headers.length < Object.keys(headers).length;
    this.bodyChars = body.length;
    this.body = body.slice(0, MAX_BODY_CHARS);
    this.sentMs = log.nowMs;
    /** @type {{status: number, statusText: string, headers: [string, string][], ms: number}|null} */
    this.head = null;
    /** @type {Part[]} The newest ones. */
    this.parts = [];
    this.partCount = 0;
    this.bytes = 0;
    this.isStream = false;
    /** The last bytes of the body, as characters. */
    this.tail = "";
    /** @type {{ms: number, state: "complete"|"closed"|"broken", reason: string}|null} Null while it is open. */
    this.end = null;
  }

  /** Note the head of a response, and return the response with a body that notes what is read of it. */
  receive(response) {
    const { status, statusText, body } = response;
    this.head = { status, statusText, headers: [...response.headers], ms: this.log.nowMs };
    this.isStream = (response.headers.get("content-type") ?? "").startsWith("text/event-stream");
    this.log.onChange();
    if (body === null) {
      this.#finish("complete");
      return response;
    }
    const reader = body.getReader();
    const noted = new ReadableStream({
      pull: async (controller) => {
        try {
          const { value, done } = await reader.read();
          if (done) {
            this.#finish("complete");
            controller.close();
          } else {
            this.#add(value);
            controller.enqueue(value);
          }
        } catch (error) {
          this.fail(error);
          controller.error(error);
        }
      },
      cancel: (reason) => {
        this.#finish("closed", CLOSED_HERE);
        return reader.cancel(reason);
      },
    });
    return new Response(noted, response);
  }

  /** Note the error of a request without a response, or of a response that breaks off. */
  fail(error) {
    const inside = this.#isInsideEvent ? " in the middle of an event" : "";
    if (error.name === "AbortError") this.#finish("closed", CLOSED_HERE);
    else if (this.head === null) this.#finish("broken", `There was no response (${error.message}).`);
    else this.#finish("broken", `The connection broke${inside} (${error.message}).`);
  }

  #finish(state, reason = "") {
    this.end ??= { ms: this.log.nowMs, state, reason };
    this.log.onChange();
  }

  get leftOut() {
    return this.partCount - Math.min(this.parts.length, MAX_PARTS);
  }

  /** The newest parts that are kept. */
  get newest() {
    return this.parts.slice(-MAX_PARTS);
  }

  get #isInsideEvent() {
    return this.isStream && this.bytes > 0 && !this.tail.replace(/\r\n?/g, "\n").endsWith("\n\n");
  }

  #add(value) {
    const ms = this.log.nowMs;
    let from = 0;
    for (const to of this.isStream ? eventEnds(value) : []) {
      this.#keep(value.subarray(from, to), ms);
      from = to;
    }
    if (from < value.length) this.#keep(value.subarray(from), ms);
    this.tail = (this.tail + String.fromCharCode(...value.subarray(-4))).slice(-4);
    this.log.onChange();
  }

  #keep(data, ms) {
    this.partCount += 1;
    this.bytes += data.length;
    // A copy of the beginning, because a view would hold all of what was read.
    this.parts.push({ ms, bytes: data.length, data: data.slice(0, MAX_PART_BYTES) });
    if (this.parts.length > 2 * MAX_PARTS) this.parts = this.parts.slice(-MAX_PARTS);
  }
}

/** Return where the events in these bytes end: behind each blank line. */
function eventEnds(bytes) {
  const ends = [];
  for (let at = bytes.indexOf(NEWLINE); at !== -1; at = bytes.indexOf(NEWLINE, at + 1)) {
    const before = bytes[at - 1] === RETURN ? at - 2 : at - 1;
    if (bytes[before] === NEWLINE) ends.push(at + 1);
  }
  return ends;
}
