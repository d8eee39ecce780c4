"""Medians with their quartiles, measured in turns, and the budgets for them."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Sample:
    """The median and the quartiles of `count` measurements of one quantity."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample:
        """Return the sample of at least one value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, len(values))


@dataclass(frozen=True, slots=True)
class Pairs:
    """Measurements of two sides in turns; the n-th measurements of both are neighbours in time."""

    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)

    def add(self, ours: float, peer: float) -> None:
        """Add one pair."""
        self.ours.append(ours)
        self.peer.append(peer)

    def ratios(self) -> list[float]:
        """Return ours divided by the peer's, pair by pair.

        The load of the machine changes slowly, so it is equal for neighbours and cancels out in
        their ratio; the ratio of two medians would include it.
        """
        return [ours / peer for ours, peer in zip(self.ours, self.peer, strict=True)]


@dataclass(frozen=True, slots=True)
class Budget:
    """The limit of the design for a row's median: for our value or for the ratio."""

    limit: float
    kind: Literal["at most", "at least"]
    of: Literal["ours", "ratio"] = "ours"

    def met(self, value: float) -> bool:
        """Return whether a median is within the budget."""
        return value <= self.limit if self.kind == "at most" else value >= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a table: a quantity measured on both sides, in `unit`."""

    name: str
    unit: str
    ours: Sample
    peer: Sample | None = None
    ratio: Sample | None = None
    budget: Budget | None = None

    @property
    def met(self) -> bool | None:
        """Whether the budget was kept; None without one."""
        if self.budget is None:
            return None
        judged = self.ratio if self.budget.of == "ratio" else self.ours
        return None if judged is None else self.budget.met(judged.median)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The result of one benchmark; `ours` and `peer` are the headings of the two columns."""

    title: str
    ours: str
    peer: str = "-"
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def compare(self, name: str, unit: str, pairs: Pairs, budget: Budget | None = None) -> None:
        """Add a row with two sides that were measured in turns."""
        self.rows.append(
            Row(
                name=name,
                unit=unit,
                ours=Sample.of(pairs.ours),
                peer=Sample.of(pairs.peer),
                ratio=Sample.of(pairs.ratios()),
                budget=budget,
            )
        )

    def add_single(
        self, name: str, unit: str, values: Sequence[float], budget: Budget | None = None
    ) -> None:
        """Add a row without a peer."""
        self.rows.append(Row(name=name, unit=unit, ours=Sample.of(values), budget=budget))


def max_budget(limit: float, of: Literal["ours", "ratio"] = "ours") -> Budget:
    """Return a budget with an upper limit."""
    return Budget(limit, "at most", of)


def min_budget(limit: float, of: Literal["ours", "ratio"] = "ours") -> Budget:
    """Return a budget with a lower limit."""
    return Budget(limit, "at least", of)


async def take_turns(
    pairs: int, ours: Callable[[], Awaitable[float]], peer: Callable[[], Awaitable[float]]
) -> Pairs:
    """Measure both sides in turns, after one warm-up of each that does not count."""
    await ours()
    await peer()
    measured = Pairs()
    for _ in range(pairs):
        measured.add(await ours(), await peer())
    return measured


async def latencies_in_turns(
    pairs: int,
    ours: Callable[[], Awaitable[list[float]]],
    peer: Callable[[], Awaitable[list[float]]],
) -> tuple[Pairs, Pairs]:
    """Return the p50 and the p95 of both sides, measured in turns, without the warm-ups."""
    p50, p95 = Pairs(), Pairs()
    for _ in range(pairs):
        of_ours, of_peer = await ours(), await peer()
        p50.add(percentile(of_ours, 50), percentile(of_peer, 50))
        p95.add(percentile(of_ours, 95), percentile(of_peer, 95))
    return p50, p95


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of all values do not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank), 1) - 1]
