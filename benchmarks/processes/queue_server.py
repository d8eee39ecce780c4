"""The peer for streaming: a queue per request. `PORT PARENT_PID MODEL_PATH`.

This is the design of most servers over a callback-driven runtime: the callback puts each token into
a `queue.Queue`; the request's thread takes them out one by one, renders an OpenAI chunk with
`json.dumps` and writes it to the client. It is the leanest form, without a framework, with the same
backend as ours. For fairness it has a thread per connection, no Nagle delay and one write per
chunk. Further locks, logs, text processing and usage are omitted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks.client import HOST
from benchmarks.queues import Source, completion_events
from benchmarks.stamping import build
from common.process_utils import die_with_parent
from engine import SamplingParams
from engine.backends.options import ScriptedOptions
from engine.output import TokenLogprob


class ScriptedSource:
    """The scripted backend, called as our engine calls it."""

    def __init__(self, model_path: str) -> None:
        self._backend = build(ScriptedOptions(model_path=model_path))
        self._backend.load()

    def generate(
        self, prompt: Sequence[int], max_tokens: int, put: Callable[[str], object]
    ) -> None:
        """Put the text of each token; return after the last one."""

        def on_piece(piece: bytes, token_id: int, logprob: TokenLogprob | None) -> bool:
            put(piece.decode())
            return token_id >= max_tokens

        self._backend.run(id(put), tuple(prompt), SamplingParams(), on_piece)


class Handler(BaseHTTPRequestHandler):
    """Handles one connection on its thread."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    source: Source

    def do_GET(self) -> None:
        """Respond to a health check."""
        self._head("application/json", "close")
        self.wfile.write(b'{"status": "ok"}')

    def do_POST(self) -> None:
        """Stream a completion."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._head("text/event-stream", "close")
        for event in completion_events(self.source, body):
            self.wfile.write(event.encode())

    def _head(self, content_type: str, connection: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Connection", connection)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: ours writes no access log either."""


def main() -> None:
    """Serve until killed."""
    port, parent, model_path = sys.argv[1:]
    die_with_parent(int(parent))
    Handler.source = ScriptedSource(model_path)
    ThreadingHTTPServer((HOST, int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
