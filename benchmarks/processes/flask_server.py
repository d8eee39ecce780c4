"""The peer for RKLLM: Flask with gunicorn threads. `PORT PARENT_PID MODEL_PATH LIBRARY`.

This is the design of GatekeeperZA's server, the fastest and most careful of the measured RKLLM
servers: a Flask application, one gunicorn worker with threads, a `queue.Queue` per request between
callback and response, and one lock around the runtime. It uses the same librkllmrt.so as ours,
through plain ctypes. Logs, history, a web page and text processing are omitted, as they are not the
subject.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flask import Flask, Response, jsonify, request
from gunicorn.app.base import BaseApplication

from benchmarks.client import HOST
from benchmarks.plain_rkllm import RkllmSource
from benchmarks.queues import completion_events
from common.process_utils import die_with_parent

_THREADS = 8


def build_app(model: Path, library: Path) -> Flask:
    """Return the application with a loaded model."""
    app = Flask("peer")
    source = RkllmSource(library, model)

    @app.get("/health")
    def health() -> Response:
        return jsonify(status="ok")

    @app.post("/v1/completions")
    def completions() -> Response:
        body: dict[str, Any] = request.get_json()

        def stream() -> Iterator[str]:
            yield from completion_events(source, body)

        return Response(stream(), mimetype="text/event-stream")

    return app


class Server(BaseApplication):
    """Gunicorn; the worker builds the application, because a runtime does not survive a fork."""

    def __init__(self, port: int, model: Path, library: Path) -> None:
        self._bind = f"{HOST}:{port}"
        self._paths = model, library
        super().__init__()

    def load_config(self) -> None:
        """Set the configuration that such servers use."""
        options = {
            "bind": self._bind,
            "workers": 1,
            "threads": _THREADS,
            "worker_class": "gthread",
            "timeout": 0,
            "loglevel": "warning",
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> Callable[..., Any]:
        """Build the application in the worker."""
        return build_app(*self._paths)


def main() -> None:
    """Serve until killed."""
    port, parent, model, library = sys.argv[1:]
    die_with_parent(int(parent))
    Server(int(port), Path(model), Path(library)).run()


if __name__ == "__main__":
    main()
