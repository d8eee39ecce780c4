"""Export spans to a collector by OTLP over HTTP."""

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
# A reachable collector takes a moment; for an unreachable one, the exporter would retry for 15 s.
_FLUSH_TIMEOUT_S = 2.0


class SpanExporter:
    """Sends batches of spans from a thread of the SDK; spans that cannot be sent are dropped.

    Uses its own provider instead of the process's, so that two servers in one process share none.
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
        """The tracer that creates spans."""
        tracer: Tracer = self._provider.get_tracer(_SERVICE)
        return tracer

    async def close(self) -> None:
        """Send the remaining spans, for at most 2 s."""
        loop = asyncio.get_running_loop()
        flushed = asyncio.Event()

        def flush() -> None:
            self._provider.shutdown()
            # The loop may have been closed after the timeout.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(flushed.set)

        # A daemon thread: the process would wait for a thread of a pool when it exits.
        threading.Thread(target=flush, name="traces", daemon=True).start()
        try:
            async with asyncio.timeout(_FLUSH_TIMEOUT_S):
                await flushed.wait()
        except TimeoutError:
            logger.warning("not all traces were sent: their collector does not answer")
            # This stops the retries, so the thread ends soon.
            exporter: Any = self._exporter
            exporter.shutdown()


def build_exporter(endpoint: str) -> SpanExporter:
    """Return an exporter to a collector; OTEL_… variables configure it, as for any SDK."""
    return SpanExporter(OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces"))
