"""The route `/metrics` for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from emulator.http.route_facts import Access, ApiRoute, OperationName, public_facts
from emulator.metrics.instruments import Metric

if TYPE_CHECKING:
    from emulator.metrics.exposition import PrometheusText


class MetricsRoute:
    """Serves the metrics to Prometheus. Owned by the event loop, like everything that it reads."""

    def __init__(self, metrics: Sequence[Metric], *, is_open: bool) -> None:
        self._metrics = metrics
        self._access = Access.NO_KEY if is_open else Access.KEY
        self._text: PrometheusText | None = None

    def route(self) -> ApiRoute:
        """Return the route to mount."""
        facts = replace(public_facts(OperationName.METRICS), access=self._access)
        return ApiRoute("/metrics", self._answer, methods=["GET"], facts=facts)

    async def _answer(self, request: Request) -> Response:
        if self._text is None:
            # Importing the library takes 0.1 s, which would block streams on this event loop.
            self._text = await asyncio.to_thread(_create_text, self._metrics)
        from emulator.metrics.exposition import MEDIA_TYPE

        return Response(self._text.render(), media_type=MEDIA_TYPE)


def _create_text(metrics: Sequence[Metric]) -> PrometheusText:
    from emulator.metrics.exposition import PrometheusText

    return PrometheusText(metrics)
