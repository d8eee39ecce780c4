"""The cost of comparing one value with a schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import orjson

from validation.options.subschema import Subschema

# The cost of a pattern per character, and of `uniqueItems` per item, in comparisons.
_PATTERN_COST = 4
_UNIQUE_ITEM_COST = 10
# An error keeps a copy of the value. A text of this many characters counts as one copied value.
_CHARS_PER_COPY = 32

# Subschemas by identity, with their multiplicities.
Counts = dict[int, int]
ExpandReferences = Callable[[Counts], Sequence[tuple[Subschema, int]]]


class ComparisonCost(NamedTuple):
    """The cost of a comparison: `comparisons`, and `copies` of values if all of them fail."""

    comparisons: int
    copies: int


class _ValueCost:
    """The set of subschemas that apply to one value, and the resulting costs.

    Many values of an answer have the same set, so it is computed once and cached.
    """

    __slots__ = (
        "_cache",
        "_in_dicts",
        "_in_lists",
        "_items",
        "_members",
        "_names",
        "compares",
        "in_dicts",
        "in_lists",
        "prefix",
        "reads",
        "reads_names",
        "size",
        "subschemas",
    )

    def __init__(self, subschemas: Sequence[tuple[Subschema, int]], cache: _ValueCosts) -> None:
        self._cache = cache
        self.subschemas = len(subschemas)
        self.size = sum(count * subschema.size for subschema, count in subschemas)
        self.reads = _PATTERN_COST * sum(count * subschema.reads for subschema, count in subschemas)
        self.reads_names = _PATTERN_COST * sum(
            count * subschema.reads_names for subschema, count in subschemas
        )
        self.compares = _UNIQUE_ITEM_COST * sum(
            count * subschema.compares for subschema, count in subschemas
        )
        self._in_dicts = [each for each in subschemas if each[0].members or each[0].every_member]
        self._in_lists = [each for each in subschemas if each[0].prefix or each[0].every_item]
        self.in_dicts, self.in_lists = len(self._in_dicts), len(self._in_lists)
        self._names = {name for subschema, _ in self._in_dicts for name in subschema.members}
        self.prefix = max((len(subschema.prefix) for subschema, _ in self._in_lists), default=0)
        self._members: dict[str | None, _ValueCost | None] = {}
        self._items: dict[int, _ValueCost | None] = {}

    def member(self, name: str) -> _ValueCost | None:
        """Return the subschemas that apply to a member of an object."""
        key = name if name in self._names else None
        if key not in self._members:
            counts: Counts = {}
            for subschema, count in self._in_dicts:
                if name in subschema.members:
                    _add_count(counts, subschema.members[name], count)
                for part in subschema.every_member:
                    _add_count(counts, part, count)
            self._members[key] = self._cache.of(counts)
        return self._members[key]

    def item(self, index: int) -> _ValueCost | None:
        """Return the subschemas that apply to an item of a list, equal for all after the prefix."""
        index = min(index, self.prefix)
        if index not in self._items:
            counts: Counts = {}
            for subschema, count in self._in_lists:
                if index < len(subschema.prefix):
                    _add_count(counts, subschema.prefix[index], count)
                for part in subschema.every_item:
                    _add_count(counts, part, count)
            self._items[index] = self._cache.of(counts)
        return self._items[index]


class _ValueCosts:
    """Cache of the sets of subschemas of one comparison."""

    def __init__(self, expand: ExpandReferences) -> None:
        self._expand = expand
        self._costs: dict[frozenset[tuple[int, int]], _ValueCost] = {}

    def of(self, counts: Counts) -> _ValueCost | None:
        """Return the set for some subschemas and all they reference; None without subschemas."""
        if not counts:
            return None
        key = frozenset(counts.items())
        if key not in self._costs:
            self._costs[key] = _ValueCost(self._expand(counts), self)
        return self._costs[key]


class _CostMeter:
    """Adds up the cost of a comparison until it exceeds the limits."""

    def __init__(self, limit: int, max_steps: int) -> None:
        self.comparisons = self.copies = self.steps = 0
        self._limit, self._max_steps = limit, max_steps
        # The last item counts the comparisons of enclosing values; each may copy the value.
        self._pending: list[tuple[Any, _ValueCost, int]] = []

    def run(self, value: Any, cost: _ValueCost) -> bool:
        """Add up the cost of a value and return whether it is within the limits."""
        self._add_values([value], cost, 0)
        while self._pending and self._is_within_limits():
            part, cost, parent_count = self._pending.pop()
            parent_count += cost.size
            self.comparisons += cost.size
            self.copies += parent_count
            self.steps += cost.subschemas
            if isinstance(part, dict):
                self._add_members(part, cost, parent_count)
            else:
                self._add_items(part, cost, parent_count)
        return self._is_within_limits()

    def _is_within_limits(self) -> bool:
        return self.comparisons <= self._limit and self.steps <= self._max_steps

    def _add_members(self, value: dict[str, Any], cost: _ValueCost, parent_count: int) -> None:
        if cost.reads_names:
            self.comparisons += cost.reads_names * sum(map(len, value))
        applications = cost.in_dicts * len(value)
        self.comparisons += applications
        self.steps += applications
        if not applications:
            self._add_values(list(value.values()), None, parent_count)
            return
        for name, member in value.items():
            self._add_values((member,), cost.member(name), parent_count)

    def _add_items(self, value: list[Any], cost: _ValueCost, parent_count: int) -> None:
        applications = cost.in_lists * len(value)
        self.comparisons += cost.compares * len(value) + applications
        self.steps += applications
        for index, item in enumerate(value[: cost.prefix]):
            self._add_values((item,), cost.item(index), parent_count)
        self._add_values(value[cost.prefix :], cost.item(cost.prefix), parent_count)

    def _add_values(
        self, values: Sequence[Any], cost: _ValueCost | None, parent_count: int
    ) -> None:
        """Count values with the same set of subschemas; containers are queued for later."""
        if cost is None:
            self.copies += parent_count * self._json_length(values)
            return
        count = 0
        for value in values:
            if isinstance(value, list | dict):
                self._pending.append((value, cost, parent_count))
                continue
            count += 1
            if isinstance(value, str):
                self.comparisons += cost.reads * len(value)
                self.copies += (parent_count + cost.size) * (len(value) // _CHARS_PER_COPY)
        self.comparisons += cost.size * count
        self.copies += (parent_count + cost.size) * count
        self.steps += cost.subschemas * count

    def _json_length(self, values: Sequence[Any]) -> int:
        """Return the number of characters of values as JSON, without the separators."""
        try:
            return len(orjson.dumps(values)) - len(values) - 1 if values else 0
        except orjson.JSONEncodeError:
            # The values are nested too deep to be encoded; return a cost over any limit.
            return self._limit


def measure(
    value: Any, root: int, expand: ExpandReferences, limit: int, max_steps: int
) -> ComparisonCost | None:
    """Return the cost of comparing a value with a schema, or None if it exceeds the limits."""
    root_cost = _ValueCosts(expand).of({root: 1})
    meter = _CostMeter(limit, max_steps)
    if root_cost is None or not meter.run(value, root_cost):
        return None
    return ComparisonCost(meter.comparisons, meter.copies)


def _add_count(counts: Counts, schema: Any, count: int) -> None:
    if isinstance(schema, dict):  # booleans and invalid schemas cost nothing
        counts[id(schema)] = counts.get(id(schema), 0) + count
