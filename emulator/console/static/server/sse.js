// Server-sent events from the body of a response: EventSource can send neither a key nor a body.

// After so long it is somebody else's turn: a fast stream must not hold up the page.
const TURN_MS = 12;

/**
 * Yield the events of a stream, comments left out.
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<{event: string, data: string, id: string}>}
 */
export async function* events(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let held = "";
  let hasReturn = false;
  let since = performance.now();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const text = decoder.decode(value, { stream: true });
      // A line ends with LF, CR or CR LF, whose halves may arrive apart.
      held += (hasReturn && text.startsWith("\n") ? text.slice(1) : text).replace(/\r\n?/g, "\n");
      hasReturn = text.endsWith("\r");
      let from = 0;
      for (let at; (at = held.indexOf("\n\n", from)) !== -1; from = at + 2) {
        const event = parsed(held.slice(from, at));
        if (event !== null) yield event;
        if (performance.now() - since > TURN_MS) {
          await turn();
          since = performance.now();
        }
      }
      held = held.slice(from);
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  let event = "message";
  let id = "";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
    else if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("id:")) id = line.slice(3).trim();
  }
  return data.length === 0 ? null : { event, data: data.join("\n"), id };
}

/** Let the page do what else there is: a message comes behind what is due, and sooner than a timer. */
export function turn() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve(undefined);
    };
    port2.postMessage(null);
  });
}
