"""What comparing a value with a JSON Schema takes, counted before it is done.

A schema may name one part of itself twice and that part another one twice: forty such lines look at
a single number 2^40 times, and a recursive schema does the same down an answer. No validator is
protected from that, and for every error that it finds it keeps a copy of the value at fault; so
what comes from a client is counted here first, with multiplicities instead of repetitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import orjson

# A schema that is larger is not written by hand, and compiling it takes noticeable time.
MAX_NODES = 10_000
# How often one value may be looked at by what stands in one place of a schema, and by how many
# parts, added up over all places.
MAX_BRANCHES = 10_000
MAX_REACH = 200_000
MAX_NESTING = 200
# At some 0.2 µs.
MAX_STEPS = 1_000_000

_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLES = ("not", "if", "then", "else")
_MAPS = ("dependentSchemas", "dependencies")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_MEMBERS = ("additionalProperties", "unevaluatedProperties", "propertyNames")
_ITEMS = ("items", "additionalItems", "unevaluatedItems", "contains")
# To know what is left unevaluated, everything beside these keywords is gone through again.
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_AGAIN = 3

# What a pattern does with a character, and a comparison of items with an item, in looks.
_READING = 4
_COMPARING = 10

Counts = dict[int, int]


class Effort(NamedTuple):
    """What a comparison takes: `looks` at values, and `copies` of them if all fails."""

    looks: int
    copies: int


class _Node:
    """A subschema: what it applies to the same value, to members and to items of it."""

    __slots__ = (
        "compares",
        "every_item",
        "every_member",
        "here",
        "members",
        "prefix",
        "reads",
        "reads_names",
        "size",
        "weight",
    )

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.weight = _AGAIN if any(name in schema for name in _UNEVALUATED) else 1
        self.size = 1 + sum(
            len(value) if isinstance(value, list | dict) else 1 for value in schema.values()
        )
        self.reads = ("pattern" in schema) + ("format" in schema)
        self.reads_names = len(_as_dict(schema.get("patternProperties")))
        self.compares = "uniqueItems" in schema
        self.here: list[Any] = [
            *(part for name in _LISTS for part in _as_list(schema.get(name))),
            *(schema[name] for name in _SINGLES if name in schema),
            *(part for name in _MAPS for part in _as_dict(schema.get(name)).values()),
        ]
        self.members = _as_dict(schema.get("properties"))
        # Whether a pattern fits a name, or a name is left over, is not asked: all of them count.
        self.every_member: list[Any] = [
            *(schema[name] for name in _MEMBERS if name in schema),
            *_as_dict(schema.get("patternProperties")).values(),
        ]
        self.prefix = [*_as_list(schema.get("prefixItems")), *_as_list(schema.get("items"))]
        self.every_item: list[Any] = [schema[name] for name in _ITEMS if name in schema]
        if self.weight > 1 and "contains" in schema:
            self.every_item += [schema["contains"]] * (self.weight - 1)

    def looks(self, value: Any) -> int:
        """Return what it does with one value, without what it has others do."""
        if isinstance(value, str):
            return self.size + self.reads * len(value) * _READING
        if isinstance(value, list):
            return self.size + self.compares * len(value) * _COMPARING
        if isinstance(value, dict) and self.reads_names:
            return self.size + self.reads_names * sum(map(len, value)) * _READING
        return self.size

    def below(self) -> Iterator[Any]:
        yield from self.members.values()
        yield from self.every_member
        yield from self.prefix
        yield from self.every_item


class Branching:
    """Counts what it takes to compare values with a schema.

    Raises:
        ValueError: the schema refers to something outside of itself, refers in circles without
            ever going down in the value, or is too large; one sentence.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        self._anchors: dict[str, list[Any]] = {}
        self._nodes: dict[int, _Node] = {}
        self._closures: dict[int, Counts] = {}
        self._reach = 0
        self._collect_anchors()
        self._explore()

    def effort(self, value: Any, limit: int) -> Effort | None:
        """Return what comparing a value takes, or none when it is more than `limit` looks.

        It gives up as well when the counting itself takes more than `MAX_STEPS`.
        """
        looks = copies = steps = 0
        # The last is how often what the value is in has been looked at: so often it may be copied.
        pending: list[tuple[Any, Counts, int]] = [(value, {id(self._root): 1}, 0)]
        while pending:
            part, bases, above = pending.pop()
            nodes = [(self._nodes[key], count) for key, count in self._spread(bases).items()]
            here = sum(count * node.looks(part) for node, count in nodes)
            looks += here
            above += sum(count * node.size for node, count in nodes)
            copies += above * (1 + len(part) // 32 if isinstance(part, str) else 1)
            below: Iterator[tuple[Any, Counts]] = iter(())
            if isinstance(part, dict):
                looking = [(node, n) for node, n in nodes if node.members or node.every_member]
                below = _members(part, looking)
            elif isinstance(part, list):
                looking = [(node, n) for node, n in nodes if node.prefix or node.every_item]
                below = _items(part, looking)
            else:
                looking = []
            children = len(part) if looking else 0
            looks += len(looking) * children
            steps += len(nodes) + len(looking) * children
            if looks > limit or steps > MAX_STEPS:
                return None
            for child, of_child in below:
                if of_child:
                    pending.append((child, of_child, above))
                else:
                    copies += above * len(orjson.dumps(child))
        return Effort(looks, copies)

    def _spread(self, bases: Counts) -> Counts:
        """Return all that looks at the value that `bases` look at."""
        if len(bases) == 1:
            [(base, count)] = bases.items()
            if count == 1:
                return self._closures[base]
        here: Counts = {}
        for base, count in bases.items():
            for key, times in self._closures[base].items():
                here[key] = here.get(key, 0) + count * times
        return here

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
        if sum(closure.values()) > MAX_BRANCHES:
            raise ValueError(f"it would look at one value more than {MAX_BRANCHES} times")
        self._reach += len(closure)
        if self._reach > MAX_REACH:
            raise ValueError("its parts refer to each other too often")
        self._closures[key] = closure
        return closure

    def _node(self, schema: dict[str, Any]) -> _Node:
        if len(self._nodes) == MAX_NODES:
            raise ValueError(f"it has more than {MAX_NODES} parts")
        node = self._nodes[id(schema)] = _Node(schema)
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


def _members(
    value: dict[str, Any], looking: list[tuple[_Node, int]]
) -> Iterator[tuple[Any, Counts]]:
    for name, member in value.items():
        bases: Counts = {}
        for node, count in looking:
            if name in node.members:
                _add(bases, node.members[name], count)
            for part in node.every_member:
                _add(bases, part, count)
        yield member, bases


def _items(value: list[Any], looking: list[tuple[_Node, int]]) -> Iterator[tuple[Any, Counts]]:
    for index, item in enumerate(value):
        bases: Counts = {}
        for node, count in looking:
            if index < len(node.prefix):
                _add(bases, node.prefix[index], count)
            for part in node.every_item:
                _add(bases, part, count)
        yield item, bases


def _add(bases: Counts, schema: Any, count: int) -> None:
    if isinstance(schema, dict):  # true, false and what is no schema are quick
        bases[id(schema)] = bases.get(id(schema), 0) + count


def _as_list(part: Any) -> list[Any]:
    return part if isinstance(part, list) else []


def _as_dict(part: Any) -> dict[str, Any]:
    return part if isinstance(part, dict) else {}
