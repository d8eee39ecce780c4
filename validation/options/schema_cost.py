"""Computes the cost of comparing a value with a JSON Schema before the comparison.

A schema can reference one part twice, that part another one twice, and so on: forty such parts
apply 2^40 subschemas to a single number, and a recursive schema does the same for nested values.
Validators have no limit for that, and keep a copy of the value for each error. So the cost of
schemas from clients is computed first, with multiplicities instead of repetition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from validation.options.comparison_cost import ComparisonCost, Counts, measure
from validation.options.subschema import Subschema

# Larger schemas are not written by hand, and take noticeable time to compile.
MAX_NODES = 10_000
# How many subschemas one subschema may apply to the same value through references, counted with
# repetitions, and the sum of their numbers without repetitions over the whole schema.
MAX_APPLICATIONS = 10_000
MAX_REACH = 200_000
MAX_NESTING = 200
# Maximum steps of the computation, at about 0.2 µs each.
MAX_STEPS = 1_000_000

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")


class SchemaCost:
    """Computes the cost of comparing values with one schema.

    Raises:
        ValueError: the schema has external references, circular references for the same value, or
            is too large; the message is one sentence.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        self._anchors: dict[str, list[Any]] = {}
        self._nodes: dict[int, Subschema] = {}
        self._expansions: dict[int, Counts] = {}
        self._expansion_size = 0
        self._collect_anchors()
        self._expand_all()

    def estimate(self, value: Any, limit: int) -> ComparisonCost | None:
        """Return the cost of comparing a value, or None if it is over `limit` comparisons.

        None is also returned if the computation itself takes more than `MAX_STEPS` steps.
        """
        return measure(value, id(self._root), self._expand, limit, MAX_STEPS)

    def _expand(self, bases: Counts) -> Sequence[tuple[Subschema, int]]:
        """Return all subschemas that `bases` apply to the same value, with multiplicities."""
        same_value: Counts = {}
        for base, count in bases.items():
            for key, multiplicity in self._expansions[base].items():
                same_value[key] = same_value.get(key, 0) + count * multiplicity
        return [(self._nodes[key], count) for key, count in same_value.items()]

    def _collect_anchors(self) -> None:
        pending: list[Any] = [self._root]
        while pending:
            part = pending.pop()
            if isinstance(part, list):
                pending += part
            elif isinstance(part, dict):
                names: list[Any] = [part.get(key) for key in _ANCHORS]
                # Up to draft 7, an anchor is written as "$id": "#name".
                names += [
                    name[1:]
                    for name in (part.get("$id"), part.get("id"))
                    if isinstance(name, str) and name.startswith("#")
                ]
                for name in names:
                    if isinstance(name, str):
                        self._anchors.setdefault(name, []).append(part)
                pending += part.values()

    def _expand_all(self) -> None:
        pending: list[Any] = [self._root]
        visited: set[int] = set()
        while pending:
            part = pending.pop()
            if not isinstance(part, dict) or id(part) in visited:
                continue
            visited.add(id(part))
            self._expand_references(part, [])
            node = self._nodes[id(part)]
            pending += node.iter_children()
            pending += node.same_value

    def _expand_references(self, schema: dict[str, Any], ancestors: list[int]) -> Counts:
        key = id(schema)
        known = self._expansions.get(key)
        if known is not None:
            return known
        if key in ancestors:
            raise ValueError("it refers to itself in a circle without going down in the answer")
        if len(ancestors) == MAX_NESTING:
            raise ValueError(f"more than {MAX_NESTING} of its parts are nested or refer on")
        node = self._add_subschema(schema)
        expansion: Counts = {key: 1}
        for part in node.same_value:
            for descendant, multiplicity in self._expand_references(
                part, [*ancestors, key]
            ).items():
                expansion[descendant] = expansion.get(descendant, 0) + multiplicity * node.weight
        if sum(expansion.values()) > MAX_APPLICATIONS:
            raise ValueError(f"it would look at one value more than {MAX_APPLICATIONS} times")
        self._expansion_size += len(expansion)
        if self._expansion_size > MAX_REACH:
            raise ValueError("its parts refer to each other too often")
        self._expansions[key] = expansion
        return expansion

    def _add_subschema(self, schema: dict[str, Any]) -> Subschema:
        if len(self._nodes) == MAX_NODES:
            raise ValueError(f"it has more than {MAX_NODES} parts")
        node = self._nodes[id(schema)] = Subschema(schema)
        for name in _REFERENCES:
            if isinstance(schema.get(name), str):
                node.same_value += self._resolve(schema[name], name)
        base = schema.get("$id", schema.get("id"))
        if schema is not self._root and isinstance(base, str) and not base.startswith("#"):
            raise ValueError(f"only its root may have an $id, and a part has {base!r:.80}")
        node.same_value = [part for part in node.same_value if isinstance(part, dict)]
        return node

    def _resolve(self, reference: str, keyword: str) -> list[Any]:
        if not reference.startswith("#"):
            raise ValueError(
                f"{keyword} {reference!r:.80} points outside of it, and only references that "
                "begin with # are followed"
            )
        pointer = unquote(reference[1:])
        if pointer and not pointer.startswith("/"):
            if pointer in self._anchors:
                return self._anchors[pointer]
            raise ValueError(f"{keyword} {reference!r:.80} points at nothing")
        part: Any = self._root
        for step in pointer.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(part, dict) and name in part:
                part = part[name]
            elif isinstance(part, list) and name.isascii() and name.isdigit():
                part = part[int(name)] if int(name) < len(part) else None
            else:
                part = None
            if part is None:
                raise ValueError(f"{keyword} {reference!r:.80} points at nothing")
        return [part]
