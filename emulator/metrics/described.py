"""The numbers as JSON, for `/system/status`: the same as `/metrics` has, by the same names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from emulator.metrics.instruments import Counter, Histogram, Metric


def described(metrics: Iterable[Metric]) -> dict[str, Any]:
    """Return each metric's number, in an object by the value of each label where it has some.

    Of a histogram that is how many observations there were, and their sum.
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
