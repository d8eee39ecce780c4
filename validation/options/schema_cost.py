"""What comparing a value with a JSON Schema takes, counted before it is done.

A schema may name one part of itself twice and that part another one twice: forty such lines look at
a single number 2^40 times, and a recursive schema does the same down an answer. No validator is
protected from that, and for every error that it finds it keeps a copy of the value at fault; so
what comes from a client is counted here first, with multiplicities instead of repetitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from validation.options.comparison_cost import ComparisonCost, Counts, measure
from validation.options.subschema import Subschema

# A schema that is larger is not written by hand, and compiling it takes noticeable time.
MAX_NODES = 10_000
# How often one value may be looked at by what stands in one place of a schema, and by how many
# parts, added up over all places.
MAX_APPLICATIONS = 10_000
MAX_REACH = 200_000
MAX_NESTING = 200
# At some 0.2 µs.
MAX_STEPS = 1_000_000

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")


class SchemaCost:
    """Counts what it takes to compare values with a schema.

    Raises:
        ValueError: the schema refers to something outside of itself, refers in circles without
            ever going down in the value, or is too large; one sentence.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        self._anchors: dict[str, list[Any]] = {}
        self._nodes: dict[int, Subschema] = {}
        self._closures: dict[int, Counts] = {}
        self._reach = 0
        self._collect_anchors()
        self._explore()

    def effort(self, value: Any, limit: int) -> ComparisonCost | None:
        """Return what comparing a value takes, or none when it is more than `limit` looks.

        It gives up as well when the counting itself takes more than `MAX_STEPS`.
        """
        return measure(value, id(self._root), self._spread, limit, MAX_STEPS)

    def _spread(self, bases: Counts) -> Sequence[tuple[Subschema, int]]:
        """Return all that looks at the value that `bases` look at, and how often each does."""
        here: Counts = {}
        for base, count in bases.items():
            for key, times in self._closures[base].items():
                here[key] = here.get(key, 0) + count * times
        return [(self._nodes[key], count) for key, count in here.items()]

    def _collect_anchors(self) -> None:
        pending: list[Any] = [self._root]
        while pending:
            part = pending.pop()
            if isinstance(part, list):
                pending += part
            elif isinstance(part, dict):
                names: list[Any] = [part.get(key) for key in _ANCHORS]
                # Until draft 7, "$id": "#name" was the way to say it.
                names += [
                    name[1:]
                    for name in (part.get("$id"), part.get("id"))
                    if isinstance(name, str) and name.startswith("#")
                ]
                for name in names:
                    if isinstance(name, str):
                        self._anchors.setdefault(name, []).append(part)
                pending += part.values()

    def _explore(self) -> None:
        pending: list[Any] = [self._root]
        seen: set[int] = set()
        while pending:
            part = pending.pop()
            if not isinstance(part, dict) or id(part) in seen:
                continue
            seen.add(id(part))
            self._close(part, [])
            node = self._nodes[id(part)]
            pending += node.below()
            pending += node.here

    def _close(self, schema: dict[str, Any], above: list[int]) -> Counts:
        key = id(schema)
        done = self._closures.get(key)
        if done is not None:
            return done
        if key in above:
            raise ValueError("it refers to itself in a circle without going down in the answer")
        if len(above) == MAX_NESTING:
            raise ValueError(f"more than {MAX_NESTING} of its parts are nested or refer on")
        node = self._node(schema)
        closure: Counts = {key: 1}
        for part in node.here:
            for below, times in self._close(part, [*above, key]).items():
                closure[below] = closure.get(below, 0) + times * node.weight
        if sum(closure.values()) > MAX_APPLICATIONS:
            raise ValueError(f"it would look at one value more than {MAX_APPLICATIONS} times")
        self._reach += len(closure)
        if self._reach > MAX_REACH:
            raise ValueError("its parts refer to each other too often")
        self._closures[key] = closure
        return closure

    def _node(self, schema: dict[str, Any]) -> Subschema:
        if len(self._nodes) == MAX_NODES:
            raise ValueError(f"it has more than {MAX_NODES} parts")
        node = self._nodes[id(schema)] = Subschema(schema)
        for name in _REFERENCES:
            if isinstance(schema.get(name), str):
                node.here += self._resolve(schema[name], name)
        base = schema.get("$id", schema.get("id"))
        if schema is not self._root and isinstance(base, str) and not base.startswith("#"):
            raise ValueError(f"only its root may have an $id, and a part has {base!r:.80}")
        node.here = [part for part in node.here if isinstance(part, dict)]
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
