"""The metrics as JSON for `/system/status`, with the same names and values as in `/metrics`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from emulator.metrics.instruments import Counter, Histogram, Metric


def metrics_as_json(metrics: Iterable[Metric]) -> dict[str, Any]:
    """Return the metrics by name: a number, or nested objects by label value if it has labels.

    A histogram is an object with the number of observations and their sum.
    """
    result: dict[str, Any] = {}
    for metric in metrics:
        name = metric.spec.name
        if metric.spec.labels:
            result[name] = {}
        for values, sample in metric.samples():
            parent, key = result, name
            for value in values:
                parent, key = parent.setdefault(key, {}), value
            parent[key] = _sample_as_json(sample)
    return result


def _sample_as_json(sample: Counter | Histogram | float) -> Any:
    if isinstance(sample, Histogram):
        return {"count": sample.count, "sum": round(sample.total, 6)}
    return sample.value if isinstance(sample, Counter) else sample
