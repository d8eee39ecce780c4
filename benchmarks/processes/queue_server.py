"""The peer for streaming: a queue per request. `PORT PARENT_PID MODEL_PATH [LIBRARY]`.

What most servers over a callback-driven runtime are: the callback puts each token into a
`queue.Queue`, the request's thread takes them out one by one, renders an OpenAI chunk with
`json.dumps` and writes it to the client. GatekeeperZA's server, the fastest and the most careful of
those measured for RKLLM, has this shape (gunicorn with threads). It stands in for that server
because it can be fed by the very same backend as ours, or by the same librkllmrt.so, which it calls
by plain ctypes, one request at a time. It is given what is fair (a thread per connection, no Nagle
delay, one write a chunk) and spared what is not its point: no further locks, no logs, no parsing of
the text, no usage.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.client import HOST
from benchmarks.plain_rkllm import RkllmSource
from benchmarks.queues import Source, tokens
from benchmarks.stamping import build
from engine import SamplingParams
from engine.hosts.child import die_with_parent
from engine.output import TokenLogprob


class ScriptedSource:
    """The scripted backend, called as our engine calls it."""

    def __init__(self, model_path: str) -> None:
        self._backend = build("scripted", {"model_path": model_path})
        self._backend.load()

    def generate(
        self, prompt: Sequence[int], max_tokens: int, put: Callable[[str], object]
    ) -> None:
        """Put the text of each token; returns after the last one."""

        def on_piece(piece: bytes, token_id: int, logprob: TokenLogprob | None) -> bool:
            put(piece.decode())
            return token_id >= max_tokens

        self._backend.run(id(put), tuple(prompt), SamplingParams(), on_piece)


class Handler(BaseHTTPRequestHandler):
    """Answers one connection on its thread."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    source: Source

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
        for text in tokens(self.source, body["prompt"], body["max_tokens"]):
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

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: ours writes no access log either."""


def main() -> None:
    """Serve until killed."""
    port, parent, model_path, *library = sys.argv[1:]
    die_with_parent(int(parent))
    Handler.source = (
        RkllmSource(Path(library[0]), Path(model_path)) if library else ScriptedSource(model_path)
    )
    ThreadingHTTPServer((HOST, int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
