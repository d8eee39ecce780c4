"""Where spans go: a collector that speaks OTLP over HTTP."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Tracer

logger = logging.getLogger(__name__)

_SERVICE = "worker-rkllm"
# One that is there takes a moment; one that is not would be tried for a quarter of a minute.
_FAREWELL_S = 2.0


class SpanExporter:
    """Sends spans from a thread of the SDK's, some at a time; what it cannot send is dropped.

    A provider of its own and not the process's: two servers in one process do not share it.
    """

    def __init__(self, exporter: OTLPSpanExporter) -> None:
        self._exporter = exporter
        resource = Resource.create()
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: _SERVICE}))
        self._provider: Any = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))

    @property
    def tracer(self) -> Tracer:
        """What spans are made with."""
        tracer: Tracer = self._provider.get_tracer(_SERVICE)
        return tracer

    async def close(self) -> None:
        """Send what is left, for as long as a collector that is there takes to take it."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def end() -> None:
            self._provider.shutdown()
            # The loop may not have waited for so long.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set)

        # No thread of the pool's, which the process would wait for at its own end.
        threading.Thread(target=end, name="traces", daemon=True).start()
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await ended.wait()
        except TimeoutError:
            logger.warning("not all traces were sent: their collector does not answer")
            # It tries no more, and the thread is soon over.
            exporter: Any = self._exporter
            exporter.shutdown()


def build_exporter(endpoint: str) -> SpanExporter:
    """Return what sends spans to a collector; OTEL_… variables say the rest, as for any SDK."""
    return SpanExporter(OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces"))
