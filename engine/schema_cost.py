"""An estimate of the grammar that a JSON Schema becomes, made before any library reads the schema.

llguidance writes each item that `minItems` and `maxItems` allow out as symbols of a grammar. A
schema of 40 bytes could therefore take gigabytes, in a thread of llama.cpp that answers nobody
else meanwhile; above 500,000 symbols llama.cpp drops the grammar without an error. The limits are
measured: `tests/property/test_schema_cost.py` compares the estimate with llama.cpp's own library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import unquote

# Compiled in about 0.2 s; some 1,600 properties.
MAX_SYMBOLS = 40_000
# Items and properties that may be there or not, in all that one place of an answer may be.
# llguidance has two entries in a row of its parser for each, and drops the grammar above 2,000.
MAX_OPTIONAL_PARTS = 1_000
# What the beginning of an array or object adds, and of one more property, in the same unit.
_PARTS_OF_ARRAY = 4
_PARTS_OF_OPEN_OBJECT = 4
_PARTS_OF_PROPERTY = 2
# Items that must be there.
MAX_ITEMS = 5_000
# Of a string, and of an object's properties; llguidance drops the grammar at some 100,000.
MAX_LENGTH = 65_536
# Of one pattern, the counts of nested repetitions multiplied.
MAX_REPETITIONS = 10_000
# Ways to combine the alternatives of an `allOf`; the library gives up at about as many.
_MAX_MERGES = 2_000
# Steps of the estimate itself, about 1 µs each. A schema of 20,000 values takes 20,000.
_MAX_STEPS = 80_000
_STEPS_OF_SCHEMA = 6
# Of a reference, one for so many characters.
_REF_CHARS_OF_STEP = 20
# The library reads 128 levels of JSON; only merged references can lead deeper.
_MAX_DEPTH = 128

_SYMBOLS_OF_ITEM = 6
_SYMBOLS_OF_PROPERTY = 14
_SYMBOLS_OF_SCHEMA = 10
# A state of an automaton for each remainder takes as long as three symbols.
_SYMBOLS_OF_REMAINDER = 3
# Written out by halves, or not at all: their size hardly matters.
_LENGTHS = ("minLength", "maxLength", "minProperties", "maxProperties")
_SYMBOLS_OF_LENGTH = 100
# Keys beside a `$ref` or an `anyOf` with which nothing has to be combined.
_ANNOTATIONS = frozenset(
    "$anchor $comment $defs $id $schema default definitions deprecated description discriminator "
    "example examples nullable readOnly title writeOnly x-guidance".split()
)
_VALUES = frozenset({"const", "default", "enum", "example", "examples"})
_NO_SCHEMA: Mapping[str, Any] = {}

_Parts = tuple[Mapping[str, Any], ...]
_Groups = tuple[Sequence[Any], ...]


def find_cost_violation(schema: Mapping[str, Any]) -> str | None:
    """Return why a schema must not reach an engine, as the rest of a sentence about it.

    Takes time in proportion to the schema, some 5 µs for each part of it.
    """
    for path, part in _schemas(schema):
        if (why := _why_part_too_costly(path, part)) is not None:
            return why
    estimate = _Estimate(schema)
    try:
        symbols = estimate.symbols()
    except _NotEstimatedError as error:
        return str(error)
    if symbols > MAX_SYMBOLS:
        return (
            f"it would become a grammar of about {symbols} symbols, and at most {MAX_SYMBOLS} are "
            "allowed"
        )
    optional = _OptionalParts(schema).of(schema)
    if optional > MAX_OPTIONAL_PARTS:
        return (
            f"one place of an answer could have {optional} optional parts, and at most "
            f"{MAX_OPTIONAL_PARTS} are allowed: an item above minItems counts as 1, an optional "
            "property as 2, an alternative that is an array or object as 4 more"
        )
    return None


def estimate_symbols(schema: Mapping[str, Any]) -> int:
    """Return how many symbols the grammar of a schema has at most.

    Raises:
        ValueError: it is nested too deep, or its alternatives can be combined in too many ways.
    """
    return _Estimate(schema).symbols()


class _NotEstimatedError(ValueError):
    """The estimate was given up; the message is the rest of a sentence about the schema."""


def _check_depth(depth: int) -> None:
    """Refuse to follow a schema any deeper.

    A `$ref` that leads back to itself within an `anyOf` would be followed until the end of Python's
    stack, and what lies below a limit would not be counted.
    """
    if depth > _MAX_DEPTH:
        raise _NotEstimatedError(
            f"it is nested more than {_MAX_DEPTH} levels deep, or refers back to itself within an "
            "allOf, anyOf or oneOf"
        )


class _Estimate:
    """Follows what llguidance does with a schema, without writing anything out.

    A `$ref` that stands alone becomes a rule of its own, once. Schemas that apply to one value
    (`allOf`, and whatever stands beside a `$ref`, an `anyOf` or a `oneOf`) are merged, and each
    alternative of one is merged with each alternative of the others.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._merges = 0
        self._steps = 0
        self._refs: list[str] = []
        self._seen_refs: set[str] = set()
        self._merging: set[tuple[int, ...]] = set()

    def symbols(self) -> int:
        symbols = self._of((self._root,), 0)
        # Grows while the rules are looked at.
        for ref in self._refs:
            target = resolve_ref(self._root, ref)
            if isinstance(target, Mapping):
                symbols += self._of((target,), 0)
        return symbols

    def _spend(self, steps: int) -> None:
        """Count steps of the estimate. Definitions that use others twice double at each level."""
        self._steps += steps
        if self._steps > _MAX_STEPS:
            raise _NotEstimatedError(
                "its references, allOf, anyOf and oneOf combine too many parts with each other"
            )

    def _of(self, parts: _Parts, depth: int) -> int:
        """Return the symbols of a value to which all parts apply."""
        _check_depth(depth)
        if len(parts) == 1 and not parts[0]:
            return _SYMBOLS_OF_SCHEMA
        key = tuple(map(id, parts))
        if key in self._merging:
            return _SYMBOLS_OF_SCHEMA
        self._merging.add(key)
        symbols = self._merged((), (), parts, depth)
        self._merging.discard(key)
        return symbols

    def _merged(self, plain: _Parts, groups: _Groups, new: _Parts, depth: int) -> int:
        """Return the symbols of plain parts, groups of alternatives and parts not yet looked at."""
        _check_depth(depth)
        self._spend(_STEPS_OF_SCHEMA + len(plain) + len(groups))
        found, alternatives, inlined = list(plain), list(groups), set[str]()
        pending = list(new)
        if len(pending) + len(found) > 1 or alternatives:
            self._merges += 1
            if self._merges > _MAX_MERGES:
                raise _NotEstimatedError(
                    f"its allOf, anyOf and oneOf can be combined in more than {_MAX_MERGES} ways"
                )
        while pending:
            part = pending.pop()
            if not isinstance(part, Mapping) or not part:
                continue
            ref = part.get("$ref")
            if isinstance(ref, str):
                self._spend(len(ref) // _REF_CHARS_OF_STEP)
                alone = not (pending or found or alternatives) and part.keys() - _ANNOTATIONS == {
                    "$ref"
                }
                if alone:
                    self._refer(ref)
                    return _SYMBOLS_OF_SCHEMA
                if ref not in inlined:
                    inlined.add(ref)
                    pending.append(resolve_ref(self._root, ref))
            alternatives += [part[name] for name in ("anyOf", "oneOf") if _is_list(part.get(name))]
            if isinstance(every := part.get("allOf"), list):
                self._spend(len(every))
                pending += every
            found.append(part)
        if not alternatives:
            return self._plain(found, depth)
        # An empty list allows nothing.
        first, *rest = alternatives
        symbols = _SYMBOLS_OF_SCHEMA
        kept = tuple(found) if _constrains(found) else ()
        for option in first:
            if kept or rest:
                symbols += self._merged(kept, tuple(rest), (option,), depth + 1)
            else:
                symbols += self._of((option,), depth + 1) if isinstance(option, Mapping) else 1
        return symbols

    def _refer(self, ref: str) -> None:
        if ref not in self._seen_refs:
            self._seen_refs.add(ref)
            self._refs.append(ref)

    def _plain(self, parts: Sequence[Mapping[str, Any]], depth: int) -> int:
        """Return the symbols of parts without alternatives."""
        symbols = _SYMBOLS_OF_SCHEMA
        factor = 1
        for part in parts:
            self._spend(_STEPS_OF_SCHEMA)
            for name in ("const", "enum") & part.keys():
                symbols += self._of_constant(part[name])
            if "multipleOf" in part:
                # Two of them make one of their common multiple.
                factor *= max(_remainders(part["multipleOf"]), 1)
        symbols += _SYMBOLS_OF_REMAINDER * (factor if factor > 1 else 0)
        return symbols + self._array(parts, depth) + self._object(parts, depth)

    def _of_constant(self, value: Any) -> int:
        """Return the symbols of a constant, or of a list of them; a scalar is part of a pattern."""
        symbols, pending = 0, [*value] if isinstance(value, list) else [value]
        self._spend(len(pending))
        while pending:
            each = pending.pop()
            symbols += 2
            if isinstance(each, Mapping):
                self._spend(len(each))
                symbols += _SYMBOLS_OF_PROPERTY * len(each)
                pending += each.values()
            elif isinstance(each, list):
                self._spend(len(each))
                symbols += _SYMBOLS_OF_ITEM * len(each)
                pending += each
        return symbols

    def _array(self, parts: Sequence[Mapping[str, Any]], depth: int) -> int:
        prefixes = [part["prefixItems"] for part in parts if _is_list(part.get("prefixItems"))]
        longest = max(map(len, prefixes), default=0)
        symbols = _SYMBOLS_OF_ITEM * max(longest, _largest(parts, "minItems", "maxItems"))
        rest = _subschemas(parts, "items")
        if rest:
            symbols += self._of(rest, depth + 1)
        self._spend(longest * len(prefixes))
        for index in range(longest):
            at = [prefix[index] for prefix in prefixes if index < len(prefix)]
            schemas = tuple(each for each in at if isinstance(each, Mapping))
            # Those of a part without so many are merged with its `items`.
            symbols += self._of(schemas + rest if len(parts) > 1 else schemas, depth + 1)
        return symbols

    def _object(self, parts: Sequence[Mapping[str, Any]], depth: int) -> int:
        known = _subschemas(parts, "properties")
        patterns = _subschemas(parts, "patternProperties")
        rest = _subschemas(parts, "additionalProperties")
        names: dict[str, None] = {}
        for properties in (*known, *patterns):
            self._spend(len(properties))
        for properties in known:
            names |= dict.fromkeys(properties)
        for part in parts:
            if isinstance(required := part.get("required"), list):
                self._spend(len(required))
                names |= dict.fromkeys(each for each in required if isinstance(each, str))
        others = {pattern: None for properties in patterns for pattern in properties}
        symbols = _SYMBOLS_OF_PROPERTY * len(names)
        if any("minProperties" in part or "maxProperties" in part for part in parts):
            # "At least one of these" becomes an alternative for each, of all of them.
            symbols += _SYMBOLS_OF_LENGTH + _SYMBOLS_OF_PROPERTY * len(names) ** 2
        symbols += _SYMBOLS_OF_PROPERTY * len(others) * (len(names) + len(others))
        for groups, keys in ((known, names), (patterns, others)):
            for key in keys:
                at = [group[key] for group in groups if key in group]
                schemas = tuple(each for each in at if isinstance(each, Mapping))
                if schemas or len(parts) > 1:
                    schemas += rest if len(parts) > 1 else ()
                    symbols += self._of(schemas, depth + 1) if schemas else 1
        return symbols + (self._of(rest, depth + 1) if rest else 0)


class _OptionalParts:
    """Counts the optional items and properties that one row of llguidance's parser can hold."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        # 0 while it is counted: a reference back to it adds nothing.
        self._known: dict[int, int] = {}

    def of(self, part: Any, depth: int = 0) -> int:
        """Return how many there are in one place of an answer, at most."""
        if not isinstance(part, Mapping) or depth > _MAX_DEPTH:
            return 0
        if (known := self._known.get(id(part))) is not None:
            return known
        self._known[id(part)] = 0
        nested = [0]
        own = max(_items(part)[1], _start_of(part))
        merged, ways = own, 1
        for name, inner in part.items():
            if name in _VALUES or not isinstance(inner, Mapping | list):
                continue
            if name in ("anyOf", "oneOf", "allOf") and isinstance(inner, list):
                merged += sum([self.of(each, depth + 1) for each in inner])
                ways *= len(inner) if name != "allOf" else 1
            elif name in ("items", "additionalProperties"):
                nested.append(self.of(inner, depth + 1))
            else:
                values = [*inner.values()] if isinstance(inner, Mapping) else inner
                nested += [self.of(each, depth + 1) for each in values]
        if isinstance(ref := part.get("$ref"), str):
            merged += self.of(resolve_ref(self._root, ref), depth + 1)
        # Each alternative is combined with what stands beside them.
        if "maxItems" in part:
            merged *= ways
        else:
            merged += own * (ways - 1)
        self._known[id(part)] = found = max(merged, *nested)
        return found


def _start_of(part: Mapping[str, Any]) -> int:
    """Return what the first character of a value of this schema adds to a row of the parser."""
    if "enum" in part or "const" in part:
        return 0
    types = part.get("type")
    if types is None:
        if "properties" in part:
            types = "object"
        elif {"$ref", "anyOf", "oneOf", "allOf"}.isdisjoint(part):
            types = "array"
    names = [types] if isinstance(types, str) else types if isinstance(types, list) else []
    count = _PARTS_OF_ARRAY if "array" in names else 0
    if "object" in names:
        properties, required = part.get("properties"), part.get("required")
        optional = set(properties) if isinstance(properties, Mapping) else set()
        if isinstance(required, list):
            optional.difference_update([each for each in required if isinstance(each, str)])
        count += _PARTS_OF_PROPERTY * len(optional)
        if part.get("additionalProperties", True) is not False:
            count += _PARTS_OF_OPEN_OBJECT
    return count


def _items(part: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many items of an array must be there, and how many more may."""
    required = _count(part.get("minItems"))
    if "maxItems" in part:
        most = _count(part["maxItems"])
    else:
        prefix = part.get("prefixItems")
        most = len(prefix) if isinstance(prefix, list) else 0
    return required, max(most - required, 0)


def resolve_ref(schema: Mapping[str, Any], ref: str) -> Any:
    """Return what a reference within a schema leads to (RFC 6901), None where that is nothing."""
    part: Any = schema
    for step in unquote(ref).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, list):
            index = int(step) if re.fullmatch("[0-9]{1,9}", step) else len(part)
            part = part[index] if index < len(part) else None
        else:
            part = part.get(step) if isinstance(part, Mapping) else None
    return part


def _schemas(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield each object within a schema that may be a schema itself, with the path to it."""
    pending: list[tuple[tuple[str, ...], Any]] = [((), schema)]
    while pending:
        path, part = pending.pop()
        if isinstance(part, Mapping):
            yield path, part
            pending += [
                ((*path, name), inner)
                for name, inner in part.items()
                if name not in _VALUES and isinstance(inner, Mapping | list)
            ]
        else:
            pending += [
                ((*path, str(index)), inner)
                for index, inner in enumerate(part)
                if isinstance(inner, Mapping | list)
            ]


def _why_part_too_costly(path: tuple[str, ...], part: Mapping[str, Any]) -> str | None:
    required, optional = _items(part)
    if required > MAX_ITEMS:
        name = _at(path, "minItems")
        return f"{name} must be at most {MAX_ITEMS}, got {_count(part.get('minItems'))}"
    if optional > MAX_OPTIONAL_PARTS:
        if "maxItems" not in part:
            name = _at(path, "prefixItems")
            return (
                f"{name} must have at most {MAX_OPTIONAL_PARTS} schemas more than minItems, got "
                f"{len(part['prefixItems'])}"
            )
        name, count = _at(path, "maxItems"), _count(part["maxItems"])
        return f"{name} must be at most {MAX_OPTIONAL_PARTS} above minItems, got {count}"
    for name in _LENGTHS:
        if (count := _count(part.get(name))) > MAX_LENGTH:
            return f"{_at(path, name)} must be at most {MAX_LENGTH}, got {count}"
    most = MAX_SYMBOLS // _SYMBOLS_OF_REMAINDER
    if "multipleOf" in part and _remainders(part["multipleOf"]) > most:
        return (
            f"{_at(path, 'multipleOf')} must have digits that make a number of at most {most}, "
            f"got {part['multipleOf']}"
        )
    patterns = [("pattern", part["pattern"])] if isinstance(part.get("pattern"), str) else []
    if isinstance(named := part.get("patternProperties"), Mapping):
        patterns += [("patternProperties", pattern) for pattern in named]
    for name, pattern in patterns:
        if (count := count_repetitions(pattern)) > MAX_REPETITIONS:
            return (
                f"{_at(path, name)} must repeat its parts at most {MAX_REPETITIONS} times, nested "
                f"counts multiplied, got {count}"
            )
    return None


# Closing brackets may be missing: a match that fails at the end would be tried at each bracket.
_REPEATED = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]?|[()]|\{(\d*)(?:,(\d*))?\}?", re.DOTALL)


def count_repetitions(pattern: str) -> int:
    """Return how often a regular expression repeats its parts, nested counts multiplied.

    Of each group the repetitions within it are added and multiplied by its own.
    """
    # Repetitions within each open group, and of the group that was closed last.
    open_groups, closed = [0], 0
    end = -1
    for token in _REPEATED.finditer(pattern):
        text = token[0]
        if text == "(":
            open_groups.append(0)
        elif text == ")":
            if len(open_groups) > 1:
                closed, end = open_groups.pop(), token.end()
                open_groups[-1] += closed
        elif text[0] == "{":
            digits = max((token[1] or "0")[:12], (token[2] or "0")[:12], key=int)
            count = max(int(digits), 1)
            inner = closed if token.start() == end else 0
            open_groups[-1] += max(inner, 1) * count - inner
            # A count may follow another.
            closed, end = max(inner, 1) * count, token.end()
    return sum(open_groups)


def _at(path: tuple[str, ...], name: str) -> str:
    shown = ".".join((*path, name))
    return shown if len(shown) <= 100 else f"{shown[:40]}…{shown[-50:]}"


def _largest(parts: Sequence[Mapping[str, Any]], *names: str) -> int:
    return max((_count(part.get(name)) for part in parts for name in names), default=0)


def _count(value: Any) -> int:
    """Return a count that a schema names; one that is no whole number is refused elsewhere."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _remainders(value: Any) -> int:
    """Return the number that the digits of a multiple make, without its decimal point."""
    try:
        number = Decimal(str(value)).normalize()
    except InvalidOperation:
        return 0
    if not number.is_finite():
        return 0
    _, digits, exponent = number.as_tuple()
    scale: int = 10 ** max(int(exponent), 0)
    return int("".join(map(str, digits)) or "0") * scale


def _constrains(parts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the parts say anything beside their alternatives."""
    ignored = _ANNOTATIONS | {"anyOf", "oneOf", "allOf", "$ref"}
    return any(part.keys() - ignored for part in parts)


def _subschemas(parts: Sequence[Mapping[str, Any]], name: str) -> _Parts:
    return tuple(part[name] for part in parts if isinstance(part.get(name), Mapping))


def _is_list(value: Any) -> bool:
    return isinstance(value, list)
