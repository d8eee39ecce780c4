"""What metrics are made of: plain numbers, by labels whose values are known beforehand.

prometheus_client's own instruments take a lock for each step and a microsecond for each label,
which is worth it between threads. These are owned by one event loop, and a job passes ten of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Generic, Literal, TypeVar

# Stands for every value of a label that is not one of those that were named.
OTHER = "other"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a metric is: `labels` has each label's values, all there will ever be."""

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
        """Count that many more."""
        self.value += amount


class Histogram:
    """How many observations were up to each bound, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        # The last one is of what lies beyond all bounds.
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Take a value that was seen so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """How many observations there were."""
        return sum(self.counts)


class Family(Generic[T]):
    """The instruments of one metric, one for each combination of its labels' values.

    A value that was not named beforehand counts as `other`: whatever callers send, there are never
    more of them than the product of what was named. All are there from the start, at 0, so that a
    rate begins with the first event; where most combinations never happen, `sparse` ones are made
    when they do.
    """

    def __init__(self, spec: Spec, make: Callable[[], T], *, sparse: bool = False) -> None:
        self.spec = spec
        self._make = make
        self._allowed = [frozenset(values) for values in spec.labels.values()]
        there = () if sparse else product(*spec.labels.values())
        self._children: dict[tuple[str, ...], T] = {values: make() for values in there}

    def of(self, *values: str) -> T:
        """Return the instrument for these values of the labels."""
        child = self._children.get(values)
        if child is None:
            pairs = zip(values, self._allowed, strict=True)
            known = tuple(value if value in allowed else OTHER for value, allowed in pairs)
            child = self._children.get(known)
            if child is None:
                child = self._children[known] = self._make()
        return child

    def samples(self) -> Iterator[tuple[tuple[str, ...], T]]:
        """Yield the instruments by their labels' values."""
        yield from self._children.items()


class Reading:
    """Numbers that are looked up when somebody asks, by their labels' values if there are any."""

    def __init__(
        self, spec: Spec, look: Callable[[], Mapping[tuple[str, ...], float] | float]
    ) -> None:
        self.spec = spec
        self._look = look

    def samples(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield what there is now."""
        found = self._look()
        yield from found.items() if isinstance(found, Mapping) else [((), found)]


Metric = Family[Counter] | Family[Histogram] | Reading
