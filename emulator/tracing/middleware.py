"""A span for each HTTP call, as a part of its client's trace where it has one."""

from __future__ import annotations

from opentelemetry import context
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import get_contextvars

from emulator.http.operation_names import operation_name
from emulator.http.request_target import RouteGroup, classify

_SPOKEN_FOR = (RouteGroup.CLIENT, RouteGroup.OPENAI)
_CARRIED = (b"traceparent", b"tracestate")
_propagator = TraceContextTextMapPropagator()


class TracingMiddleware:
    """Begins where the client's `traceparent` says, W3C's header, or a trace of its own.

    What clients ask for; a worker's calls and probes would be traces about nothing.
    """

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a call inside its span."""
        if scope["type"] != "http" or classify(scope).group not in _SPOKEN_FOR:
            await self._app(scope, receive, send)
            return
        status = 0

        async def seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        about = {
            "http.request.method": scope["method"],
            "url.path": scope["path"],
            "worker_rkllm.request.id": str(get_contextvars().get("request_id", "")),
        }
        name = f"{scope['method']} {operation_name(scope)}"
        span = self._tracer.start_span(name, _carried(scope), SpanKind.SERVER, attributes=about)
        # Not the context it came in: the one of a request before this may still be there.
        token = context.attach(set_span_in_context(span, Context()))
        try:
            await self._app(scope, receive, seen)
        finally:
            context.detach(token)
            # Of a client that left before it was answered, as in the log.
            span.set_attribute("http.response.status_code", status or 499)
            if status >= 500:
                span.set_status(Status(StatusCode.ERROR))
            span.end()


def _carried(scope: Scope) -> Context:
    """Return the context that a client has sent along; an empty one where that is none."""
    headers = {
        name.decode(): value.decode("latin-1")
        for name, value in scope["headers"]
        if name in _CARRIED
    }
    return _propagator.extract(headers, Context())
