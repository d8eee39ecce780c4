"""Counters and histograms as plain numbers, with labels whose values are known in advance.

prometheus_client's own instruments lock on each update and take a microsecond per label, which
makes them safe between threads. These are owned by one event loop, and a job updates ten of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Generic, Literal, TypeVar

# Replaces each label value that was not declared.
OTHER = "other"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """A metric's name, type and description; `labels` has all values that each label can have."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int = 1) -> None:
        """Increase the counter by `amount`."""
        self.value += amount


class Histogram:
    """The number of observations up to each bound, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        # The last count is for values above all bounds.
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Record a value that was observed `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self.counts)


class Family(Generic[T]):
    """The instruments of one metric, one for each combination of its label values.

    A label value that was not declared counts as `other`, so clients cannot create more series than
    the product of the declared values. All series exist from the start, at 0, so a rate includes
    the first event. With `sparse`, for metrics most of whose combinations never happen, a series is
    created at its first event.
    """

    def __init__(self, spec: MetricSpec, make: Callable[[], T], *, sparse: bool = False) -> None:
        self.spec = spec
        self._make = make
        self._allowed = [frozenset(values) for values in spec.labels.values()]
        initial = () if sparse else product(*spec.labels.values())
        self._children: dict[tuple[str, ...], T] = {values: make() for values in initial}

    def labels(self, *values: str) -> T:
        """Return the instrument for these label values."""
        child = self._children.get(values)
        if child is None:
            pairs = zip(values, self._allowed, strict=True)
            known = tuple(value if value in allowed else OTHER for value, allowed in pairs)
            child = self._children.get(known)
            if child is None:
                child = self._children[known] = self._make()
        return child

    def samples(self) -> Iterator[tuple[tuple[str, ...], T]]:
        """Yield the instruments with their label values."""
        yield from self._children.items()


class PolledMetric:
    """Numbers that are read at each scrape, by label values if the metric has labels."""

    def __init__(
        self, spec: MetricSpec, read: Callable[[], Mapping[tuple[str, ...], float] | float]
    ) -> None:
        self.spec = spec
        self._read = read

    def samples(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the current numbers with their label values."""
        numbers = self._read()
        yield from numbers.items() if isinstance(numbers, Mapping) else [((), numbers)]


Metric = Family[Counter] | Family[Histogram] | PolledMetric
