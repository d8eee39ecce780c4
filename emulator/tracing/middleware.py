"""Create a span for each client request, as a part of the client's trace if it sends one."""

from __future__ import annotations

from opentelemetry import context
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import get_contextvars

from emulator.http.route_facts import read_route

_CONTEXT_HEADERS = (b"traceparent", b"tracestate")
_propagator = TraceContextTextMapPropagator()


class TracingMiddleware:
    """Creates a span in the trace of the client's `traceparent` (a W3C header), or a new trace.

    Only requests of clients are traced. Traces of workers' requests and probes would be useless.
    """

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request inside its span."""
        if scope["type"] != "http" or not read_route(scope).is_client:
            await self._app(scope, receive, send)
            return
        status = 0

        async def record_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        attributes = {
            "http.request.method": scope["method"],
            "url.path": scope["path"],
            "worker_rkllm.request.id": str(get_contextvars().get("request_id", "")),
        }
        name = f"{scope['method']} {read_route(scope).operation}"
        parent = _read_context(scope)
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, attributes=attributes)
        # Not the current context: it may still be the one of the previous request.
        token = context.attach(set_span_in_context(span, Context()))
        try:
            await self._app(scope, receive, record_status)
        finally:
            context.detach(token)
            # 499 if the client disconnected before the response, as in the log.
            span.set_attribute("http.response.status_code", status or 499)
            if status >= 500:
                span.set_status(Status(StatusCode.ERROR))
            span.end()


def _read_context(scope: Scope) -> Context:
    """Return the trace context that the client has sent; an empty one if it has sent none."""
    headers = {
        name.decode(): value.decode("latin-1")
        for name, value in scope["headers"]
        if name in _CONTEXT_HEADERS
    }
    return _propagator.extract(headers, Context())
