"""The route `/metrics` for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from emulator.http.open_paths import METRICS_PATH
from emulator.metrics.instruments import Metric

if TYPE_CHECKING:
    from emulator.metrics.exposition import PrometheusText


class MetricsRoute:
    """Serves the metrics to Prometheus. Owned by the event loop, like everything that it reads."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics
        self._text: PrometheusText | None = None

    def route(self) -> Route:
        """Return the route to mount."""
        return Route(METRICS_PATH, self._answer, methods=["GET"])

    async def _answer(self, request: Request) -> Response:
        if self._text is None:
            # Importing the library takes 0.1 s, which would block streams on this event loop.
            self._text = await asyncio.to_thread(_create_text, self._metrics)
        from emulator.metrics.exposition import MEDIA_TYPE

        return Response(self._text.render(), media_type=MEDIA_TYPE)


def _create_text(metrics: Sequence[Metric]) -> PrometheusText:
    from emulator.metrics.exposition import PrometheusText

    return PrometheusText(metrics)
