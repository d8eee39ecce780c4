"""Medians with their spread, taken in turns, and the budgets they are held to."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Sample:
    """The median and the quartiles of `count` measurements of one thing."""

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
    """What two sides measured in turns; the n-th of both were neighbours in time."""

    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)

    def add(self, ours: float, peer: float) -> None:
        """Take one more pair."""
        self.ours.append(ours)
        self.peer.append(peer)

    def ratios(self) -> list[float]:
        """Return ours divided by the peer's, pair by pair.

        The machine's mood changes slowly, so neighbours share it and it drops out of their ratio;
        the ratio of two medians would keep it.
        """
        return [ours / peer for ours, peer in zip(self.ours, self.peer, strict=True)]


@dataclass(frozen=True, slots=True)
class Budget:
    """What the design promises for a row's median: for our own figure or for the ratio."""

    limit: float
    kind: Literal["at most", "at least"]
    of: Literal["ours", "ratio"] = "ours"

    def met(self, value: float) -> bool:
        """Whether a median keeps the promise."""
        return value <= self.limit if self.kind == "at most" else value >= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a table: what was measured on both sides, in `unit`."""

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
    """One benchmark's outcome; `ours` and `peer` say who stands in those two columns."""

    title: str
    ours: str
    peer: str = "-"
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def compare(self, name: str, unit: str, pairs: Pairs, budget: Budget | None = None) -> None:
        """Add a row of two sides that took turns."""
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

    def alone(
        self, name: str, unit: str, values: Sequence[float], budget: Budget | None = None
    ) -> None:
        """Add a row that has no peer."""
        self.rows.append(Row(name=name, unit=unit, ours=Sample.of(values), budget=budget))


def at_most(limit: float, of: Literal["ours", "ratio"] = "ours") -> Budget:
    """Return a budget that a smaller figure keeps."""
    return Budget(limit, "at most", of)


def at_least(limit: float, of: Literal["ours", "ratio"] = "ours") -> Budget:
    """Return a budget that a larger figure keeps."""
    return Budget(limit, "at least", of)


async def take_turns(
    pairs: int, ours: Callable[[], Awaitable[float]], peer: Callable[[], Awaitable[float]]
) -> Pairs:
    """Measure both sides in turns, after one turn of each that warms up and is not counted."""
    await ours()
    await peer()
    found = Pairs()
    for _ in range(pairs):
        found.add(await ours(), await peer())
    return found


async def latencies_in_turns(
    pairs: int,
    ours: Callable[[], Awaitable[list[float]]],
    peer: Callable[[], Awaitable[list[float]]],
) -> tuple[Pairs, Pairs]:
    """Return the p50 and the p95 of what both sides measured in turns, none of them a warm-up."""
    p50, p95 = Pairs(), Pairs()
    for _ in range(pairs):
        of_ours, of_peer = await ours(), await peer()
        p50.add(percentile(of_ours, 50), percentile(of_peer, 50))
        p95.add(percentile(of_ours, 95), percentile(of_peer, 95))
    return p50, p95


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of all do not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank), 1) - 1]
