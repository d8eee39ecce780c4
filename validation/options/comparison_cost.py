"""How much there is to do to compare one value with a schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import orjson

from validation.options.subschema import Subschema

# What a pattern does with a character, and a comparison of items with an item, in looks.
_PATTERN_COST = 4
_UNIQUE_ITEM_COST = 10
# An error message has a copy of a text in pieces of that many characters.
_CHARS_PER_COPY = 32

# Subschemas by their identity, and how often each of them is meant.
Counts = dict[int, int]
ExpandReferences = Callable[[Counts], Sequence[tuple[Subschema, int]]]


class ComparisonCost(NamedTuple):
    """What a comparison takes: `looks` at values, and `copies` of them if all fails."""

    looks: int
    copies: int


class _ValueCost:
    """All subschemas that look at one value.

    Most values of an answer are looked at like many others: what that takes is worked out once.
    """

    __slots__ = (
        "_in_dicts",
        "_in_lists",
        "_items",
        "_known",
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

    def __init__(self, nodes: Sequence[tuple[Subschema, int]], known: _ValueCosts) -> None:
        self._known = known
        self.subschemas = len(nodes)
        self.size = sum(count * node.size for node, count in nodes)
        self.reads = _PATTERN_COST * sum(count * node.reads for node, count in nodes)
        self.reads_names = _PATTERN_COST * sum(count * node.reads_names for node, count in nodes)
        self.compares = _UNIQUE_ITEM_COST * sum(count * node.compares for node, count in nodes)
        self._in_dicts = [each for each in nodes if each[0].members or each[0].every_member]
        self._in_lists = [each for each in nodes if each[0].prefix or each[0].every_item]
        self.in_dicts, self.in_lists = len(self._in_dicts), len(self._in_lists)
        self._names = {name for node, _ in self._in_dicts for name in node.members}
        self.prefix = max((len(node.prefix) for node, _ in self._in_lists), default=0)
        self._members: dict[str | None, _ValueCost | None] = {}
        self._items: dict[int, _ValueCost | None] = {}

    def member(self, name: str) -> _ValueCost | None:
        """Return what looks at a member of an object."""
        key = name if name in self._names else None
        if key not in self._members:
            counts: Counts = {}
            for node, count in self._in_dicts:
                if name in node.members:
                    _add_count(counts, node.members[name], count)
                for part in node.every_member:
                    _add_count(counts, part, count)
            self._members[key] = self._known.of(counts)
        return self._members[key]

    def item(self, index: int) -> _ValueCost | None:
        """Return what looks at an item of a list; at those behind the prefix it is the same."""
        index = min(index, self.prefix)
        if index not in self._items:
            counts: Counts = {}
            for node, count in self._in_lists:
                if index < len(node.prefix):
                    _add_count(counts, node.prefix[index], count)
                for part in node.every_item:
                    _add_count(counts, part, count)
            self._items[index] = self._known.of(counts)
        return self._items[index]


class _ValueCosts:
    """All looks that have come up in one comparison."""

    def __init__(self, spread: ExpandReferences) -> None:
        self._spread = spread
        self._looks: dict[frozenset[tuple[int, int]], _ValueCost] = {}

    def of(self, counts: Counts) -> _ValueCost | None:
        """Return the looks of some subschemas and of all they refer to, None if there are none."""
        if not counts:
            return None
        key = frozenset(counts.items())
        if key not in self._looks:
            self._looks[key] = _ValueCost(self._spread(counts), self)
        return self._looks[key]


class _CostMeter:
    """Adds up what comparing a value takes, until it is too much."""

    def __init__(self, limit: int, most_steps: int) -> None:
        self.looks = self.copies = self.steps = 0
        self._limit, self._most_steps = limit, most_steps
        # The last is how often what the value is in has been looked at: so often it may be copied.
        self._pending: list[tuple[Any, _ValueCost, int]] = []

    def run(self, value: Any, looks: _ValueCost) -> bool:
        """Tell whether it was not too much."""
        self._values([value], looks, 0)
        while self._pending and self._is_little():
            part, looks, above = self._pending.pop()
            above += looks.size
            self.looks += looks.size
            self.copies += above
            self.steps += looks.subschemas
            if isinstance(part, dict):
                self._members(part, looks, above)
            else:
                self._items(part, looks, above)
        return self._is_little()

    def _is_little(self) -> bool:
        return self.looks <= self._limit and self.steps <= self._most_steps

    def _members(self, value: dict[str, Any], looks: _ValueCost, above: int) -> None:
        if looks.reads_names:
            self.looks += looks.reads_names * sum(map(len, value))
        inside = looks.in_dicts * len(value)
        self.looks += inside
        self.steps += inside
        if not inside:
            self._values(list(value.values()), None, above)
            return
        for name, member in value.items():
            self._values((member,), looks.member(name), above)

    def _items(self, value: list[Any], looks: _ValueCost, above: int) -> None:
        inside = looks.in_lists * len(value)
        self.looks += looks.compares * len(value) + inside
        self.steps += inside
        for index, item in enumerate(value[: looks.prefix]):
            self._values((item,), looks.item(index), above)
        self._values(value[looks.prefix :], looks.item(looks.prefix), above)

    def _values(self, values: Sequence[Any], looks: _ValueCost | None, above: int) -> None:
        """Count values that are looked at in the same way, those with others in them later."""
        if looks is None:
            self.copies += above * self._length(values)
            return
        count = 0
        for value in values:
            if isinstance(value, list | dict):
                self._pending.append((value, looks, above))
                continue
            count += 1
            if isinstance(value, str):
                self.looks += looks.reads * len(value)
                self.copies += (above + looks.size) * (len(value) // _CHARS_PER_COPY)
        self.looks += looks.size * count
        self.copies += (above + looks.size) * count
        self.steps += looks.subschemas * count

    def _length(self, values: Sequence[Any]) -> int:
        """Return how many characters values have as JSON, without what stands between them."""
        try:
            return len(orjson.dumps(values)) - len(values) - 1 if values else 0
        except orjson.JSONEncodeError:
            # They nest deeper than can be written, and are too much to be copied.
            return self._limit


def measure(
    value: Any, root: int, spread: ExpandReferences, limit: int, most_steps: int
) -> ComparisonCost | None:
    """Return what comparing a value with a schema takes, None if it is too much."""
    looks = _ValueCosts(spread).of({root: 1})
    found = _CostMeter(limit, most_steps)
    if looks is None or not found.run(value, looks):
        return None
    return ComparisonCost(found.looks, found.copies)


def _add_count(counts: Counts, schema: Any, count: int) -> None:
    if isinstance(schema, dict):  # true, false and what is no schema are quick
        counts[id(schema)] = counts.get(id(schema), 0) + count
