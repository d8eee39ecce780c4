"""The metrics as JSON for `/system/status`, with the same names and values as in `/metrics`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from emulator.metrics.instruments import Counter, Histogram, Metric


def metrics_as_json(metrics: Iterable[Metric]) -> dict[str, Any]:
    """Return the metrics by name: a number, or nested objects by label value if it has labels.

    A histogram is an object with the number of observations and their sum.
    """
    found: dict[str, Any] = {}
    for metric in metrics:
        name = metric.spec.name
        if metric.spec.labels:
            found[name] = {}
        for values, number in metric.samples():
            place, key = found, name
            for value in values:
                place, key = place.setdefault(key, {}), value
            place[key] = _value(number)
    return found


def _value(number: Counter | Histogram | float) -> Any:
    if isinstance(number, Histogram):
        return {"count": number.count, "sum": round(number.total, 6)}
    return number.value if isinstance(number, Counter) else number
