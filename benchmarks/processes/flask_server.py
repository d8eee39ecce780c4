"""The peer for RKLLM: Flask under gunicorn's threads. `PORT PARENT_PID MODEL_PATH LIBRARY`.

GatekeeperZA's server, the fastest and the most careful of those measured for RKLLM, is this: a
Flask application, one gunicorn worker with threads, a `queue.Queue` per request between callback
and response, one lock around the runtime. Fed by the very same librkllmrt.so as ours, called by
plain ctypes. It is spared what is not its point: logs, history, a web page, text to look through.
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
from engine.hosts.process_utils import die_with_parent

_THREADS = 8


def build_app(model: Path, library: Path) -> Flask:
    """Return the application, with the model loaded."""
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
    """Gunicorn around the application, built in the worker: a runtime does not survive a fork."""

    def __init__(self, port: int, model: Path, library: Path) -> None:
        self._bind = f"{HOST}:{port}"
        self._paths = model, library
        super().__init__()

    def load_config(self) -> None:
        """Set what such servers set."""
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
