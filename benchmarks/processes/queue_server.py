"""The peer for streaming: a queue per request. `PORT PARENT_PID MODEL_PATH`.

What most servers over a callback-driven runtime are: the callback puts each token into a
`queue.Queue`, the request's thread takes them out one by one, renders an OpenAI chunk with
`json.dumps` and writes it to the client. GatekeeperZA's server, the fastest and the most careful of
those measured for RKLLM, has this shape (gunicorn with threads). It stands in for that server
because it can be fed by the very same backend as ours; it is given what is fair (a thread per
connection, no Nagle delay, one write a chunk) and spared what is not its point: no locks, no logs,
no parsing of the text, no usage.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from benchmarks.client import HOST
from benchmarks.stamping import build
from engine import SamplingParams
from engine.backends.base import Backend
from engine.hosts.child import die_with_parent
from engine.output import TokenLogprob

_TOKEN_TIMEOUT_S = 30.0


class Handler(BaseHTTPRequestHandler):
    """Answers one connection on its thread."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    backend: Backend

    def do_GET(self) -> None:
        """Say that all is well."""
        self._head("application/json", "close")
        self.wfile.write(b'{"status": "ok"}')

    def do_POST(self) -> None:
        """Stream a completion."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._head("text/event-stream", "close")
        for event in self._events(body):
            self.wfile.write(event.encode())

    def _head(self, content_type: str, connection: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Connection", connection)
        self.end_headers()

    def _events(self, body: dict[str, Any]) -> Iterator[str]:
        request_id, created = f"cmpl-{uuid.uuid4().hex}", int(time.time())
        for text in self._tokens(body["prompt"], body["max_tokens"]):
            chunk = {
                "id": request_id,
                "object": "text_completion",
                "created": created,
                "model": body["model"],
                "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": None}],
            }
            yield f"data: {json.dumps(chunk)}\n\n"
        last = {"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}
        yield f"data: {json.dumps({'id': request_id, 'choices': [last]})}\n\n"
        yield "data: [DONE]\n\n"

    def _tokens(self, prompt: str, max_tokens: int) -> Iterator[str]:
        tokens: queue.Queue[str | None] = queue.Queue()

        def on_piece(piece: bytes, token_id: int, logprob: TokenLogprob | None) -> bool:
            tokens.put(piece.decode())
            return token_id >= max_tokens

        def generate() -> None:
            try:
                self.backend.run(id(tokens), prompt, SamplingParams(), on_piece)
            finally:
                tokens.put(None)

        threading.Thread(target=generate, daemon=True).start()
        while (token := tokens.get(timeout=_TOKEN_TIMEOUT_S)) is not None:
            yield token

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: ours writes no access log either."""


def main() -> None:
    """Serve until killed."""
    port, parent, model_path = sys.argv[1:]
    die_with_parent(int(parent))
    Handler.backend = build("scripted", {"model_path": model_path})
    Handler.backend.load()
    ThreadingHTTPServer((HOST, int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
