"""All access to undocumented parts of uvicorn and httpx.

A release may rename them without notice. So pyproject.toml has an upper bound for each library, and
importing this module fails with one sentence if a part is missing.
"""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING

import httpcore2
import httpx2
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

# The methods that this package overrides or calls.
_UVICORN_METHODS: dict[type, tuple[str, ...]] = {
    FlowControl: ("pause_reading", "resume_reading"),
    HttpToolsProtocol: (
        "_start_asgi_task",
        "_unset_keepalive_if_required",
        "on_body",
        "on_headers_complete",
        "on_message_begin",
        "on_message_complete",
        "on_response_complete",
        "on_url",
        "timeout_keep_alive_handler",
    ),
}


def missing_methods(methods: dict[type, tuple[str, ...]]) -> list[str]:
    """Return the methods that their classes do not have, as `Class.method`."""
    return [
        f"{owner.__name__}.{name}"
        for owner, names in methods.items()
        for name in names
        if not callable(getattr(owner, name, None))
    ]


def _require_uvicorn_methods() -> None:
    if missing := missing_methods(_UVICORN_METHODS):
        version = importlib.metadata.version("uvicorn")
        raise ImportError(
            f"uvicorn {version} has no {', '.join(missing)}: install a version that worker-rkllm's "
            "requirements allow"
        )


_require_uvicorn_methods()


class UvicornConnection(HttpToolsProtocol):
    """Uvicorn's connection, with names of our own for its internal parts.

    Owned by the event loop.
    """

    def wrap_app(self, app: ASGI3Application) -> ASGI3Application:
        """Return the application that handles the request; override this to wrap it."""
        return app

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        super()._start_asgi_task(cycle, self.wrap_app(app))

    def stop_keep_alive_timer(self) -> None:
        """Stop the timer that closes an idle connection."""
        self._unset_keepalive_if_required()

    @property
    def is_response_complete(self) -> bool:
        """Whether no request is left that has to be answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_response_started(self) -> bool:
        """Whether the headers of the last request's response have been sent."""
        return self.cycle is not None and self.cycle.response_started

    def drop_body(self) -> int:
        """Free the received part of a body that the application has not read; return its size."""
        if self.cycle is None:
            return 0
        size_bytes = len(self.cycle.body)
        self.cycle.body = bytearray()
        return size_bytes

    def abandon_request(self) -> None:
        """End the current request as if the client had disconnected: nothing more is written."""
        if self.cycle is None or self.cycle.response_complete:
            return
        self.cycle.disconnected = True
        # No `100 Continue` may be written any more.
        self.cycle.waiting_for_100_continue = False
        self.cycle.message_event.set()


def set_network_backend(
    transport: httpx2.AsyncHTTPTransport, backend: httpcore2.AsyncNetworkBackend
) -> None:
    """Make an httpx transport connect through `backend`, for which httpx has no option."""
    transport._pool._network_backend  # noqa: B018 - raises AttributeError if it is not there
    transport._pool._network_backend = backend
