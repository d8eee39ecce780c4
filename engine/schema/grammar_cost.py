"""Estimates the size of the grammar of a JSON Schema before any library reads the schema.

llguidance expands each item that `minItems` and `maxItems` allow into symbols of a grammar. So a
schema of 40 bytes could take gigabytes, in a thread of llama.cpp that serves no other request
meanwhile; above 500,000 symbols llama.cpp drops the grammar without an error. The limits are
measured: `tests/property/test_grammar_cost.py` compares the estimate with llama.cpp's own library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import unquote

# Some 1,600 properties, compiled in about 0.2 s.
MAX_SCHEMA_SYMBOLS = 40_000
# Optional items and properties of all values that are allowed at one position of an answer.
# llguidance's parser keeps two entries per part in one row, and drops the grammar above 2,000.
MAX_OPTIONAL_PARTS = 1_000
# Parts that the start of an array, the start of an object, and each of its properties add.
_PARTS_PER_ARRAY = 4
_PARTS_PER_OPEN_OBJECT = 4
_PARTS_PER_PROPERTY = 2
# Required items of an array.
MAX_ITEMS = 5_000
# Length of a string, or number of an object's properties; llguidance drops the grammar at some
# 100,000.
MAX_LENGTH = 65_536
# Repetitions in one pattern, nested counts multiplied.
MAX_REPETITIONS = 10_000
# Combinations of the alternatives of an `allOf`; the library stops at about as many.
_MAX_MERGES = 2_000
# Steps of the estimate itself, about 1 µs each. A schema of 20,000 values takes 20,000.
_MAX_STEPS = 80_000
_STEPS_PER_SCHEMA = 6
# Characters of a reference that count as one step.
_REF_CHARS_PER_STEP = 20
# The library reads 128 levels of JSON; only merged references can lead deeper.
_MAX_DEPTH = 128

_SYMBOLS_PER_ITEM = 6
_SYMBOLS_PER_PROPERTY = 14
_SYMBOLS_PER_SCHEMA = 10
# `multipleOf` becomes an automaton with one state per remainder, which takes as long as 3 symbols.
_SYMBOLS_PER_REMAINDER = 3
# The library expands these by halves or not at all, so their values hardly matter.
_LENGTHS = ("minLength", "maxLength", "minProperties", "maxProperties")
_SYMBOLS_PER_LENGTH = 100
# Keys next to a `$ref` or `anyOf` that add no constraint to combine.
_ANNOTATIONS = frozenset(
    "$anchor $comment $defs $id $schema default definitions deprecated description discriminator "
    "example examples nullable readOnly title writeOnly x-guidance".split()
)
_VALUES = frozenset({"const", "default", "enum", "example", "examples"})

_Parts = tuple[Mapping[str, Any], ...]
_Groups = tuple[Sequence[Any], ...]


def find_cost_violation(schema: Mapping[str, Any]) -> str | None:
    """Return why a schema is too costly for an engine, as the rest of a sentence, or None.

    Takes some 5 µs for each part of the schema.
    """
    for path, part in _iterate_schemas(schema):
        if (violation := _find_part_violation(path, part)) is not None:
            return violation
    try:
        symbols = estimate_symbols(schema)
    except _NotEstimatedError as error:
        return str(error)
    if symbols > MAX_SCHEMA_SYMBOLS:
        return (
            f"it would become a grammar of about {symbols} symbols, and at most "
            f"{MAX_SCHEMA_SYMBOLS} are allowed"
        )
    optional = _OptionalParts(schema).count(schema)
    if optional > MAX_OPTIONAL_PARTS:
        return (
            f"one place of an answer could have {optional} optional parts, and at most "
            f"{MAX_OPTIONAL_PARTS} are allowed: an item above minItems counts as 1, an optional "
            "property as 2, an alternative that is an array or object as 4 more"
        )
    return None


def estimate_symbols(schema: Mapping[str, Any]) -> int:
    """Return an upper estimate of the symbols in the grammar of a schema.

    Raises:
        ValueError: it is nested too deep, or its alternatives can be combined in too many ways.
    """
    return _Estimate(schema).symbols()


class _NotEstimatedError(ValueError):
    """The estimate was stopped; the message is the rest of a sentence about the schema."""


def _check_depth(depth: int) -> None:
    """Refuse a schema that is nested too deep.

    A `$ref` that leads back to itself within an `anyOf` would otherwise be followed until Python's
    stack overflows. To ignore the parts below the limit would make the estimate too low.
    """
    if depth > _MAX_DEPTH:
        raise _NotEstimatedError(
            f"it is nested more than {_MAX_DEPTH} levels deep, or refers back to itself within an "
            "allOf, anyOf or oneOf"
        )


class _Estimate:
    """Follows llguidance's expansion of a schema, but only counts the symbols.

    A `$ref` that stands alone becomes a rule of its own, once. Schemas that apply to one value (in
    `allOf`, or next to a `$ref`, `anyOf` or `oneOf`) are merged, and each alternative of one schema
    is merged with each alternative of the others.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._merges = 0
        self._steps = 0
        self._refs: list[str] = []
        self._known_refs: set[str] = set()
        self._merging: set[tuple[int, ...]] = set()

    def symbols(self) -> int:
        symbols = self._count_value((self._root,), 0)
        # The list grows during the loop.
        for ref in self._refs:
            target = resolve_ref(self._root, ref)
            if isinstance(target, Mapping):
                symbols += self._count_value((target,), 0)
        return symbols

    def _spend(self, steps: int) -> None:
        """Count steps of the estimate, which double per level if definitions use others twice."""
        self._steps += steps
        if self._steps > _MAX_STEPS:
            raise _NotEstimatedError(
                "its references, allOf, anyOf and oneOf combine too many parts with each other"
            )

    def _count_value(self, parts: _Parts, depth: int) -> int:
        """Return the symbols of a value to which all parts apply."""
        _check_depth(depth)
        if len(parts) == 1 and not parts[0]:
            return _SYMBOLS_PER_SCHEMA
        key = tuple(map(id, parts))
        if key in self._merging:
            return _SYMBOLS_PER_SCHEMA
        self._merging.add(key)
        symbols = self._count_merged((), (), parts, depth)
        self._merging.discard(key)
        return symbols

    def _count_merged(self, plain: _Parts, groups: _Groups, new: _Parts, depth: int) -> int:
        """Return the symbols of plain parts, groups of alternatives, and unprocessed parts."""
        _check_depth(depth)
        self._spend(_STEPS_PER_SCHEMA + len(plain) + len(groups))
        if len(new) + len(plain) > 1 or groups:
            self._spend_merge()
        plain_parts, alternatives = list(plain), list(groups)
        if not self._collect(list(new), plain_parts, alternatives):
            return _SYMBOLS_PER_SCHEMA
        if not alternatives:
            return self._count_plain(plain_parts, depth)
        # An empty list of alternatives allows no value.
        first, *rest = alternatives
        symbols = _SYMBOLS_PER_SCHEMA
        common = tuple(plain_parts) if _has_constraints(plain_parts) else ()
        for option in first:
            if common or rest:
                symbols += self._count_merged(common, tuple(rest), (option,), depth + 1)
            else:
                is_schema = isinstance(option, Mapping)
                symbols += self._count_value((option,), depth + 1) if is_schema else 1
        return symbols

    def _spend_merge(self) -> None:
        self._merges += 1
        if self._merges > _MAX_MERGES:
            raise _NotEstimatedError(
                f"its allOf, anyOf and oneOf can be combined in more than {_MAX_MERGES} ways"
            )

    def _collect(self, pending: list[Any], plain: list[Any], alternatives: list[Any]) -> bool:
        """Add pending parts, and the parts that they refer to, to the plain parts and alternatives.

        Returns False if all parts together are one `$ref`, which becomes a rule of its own.
        """
        inlined = set[str]()
        while pending:
            part = pending.pop()
            if not isinstance(part, Mapping) or not part:
                continue
            ref = part.get("$ref")
            if isinstance(ref, str):
                self._spend(len(ref) // _REF_CHARS_PER_STEP)
                has_others = pending or plain or alternatives
                if not has_others and part.keys() - _ANNOTATIONS == {"$ref"}:
                    self._add_rule(ref)
                    return False
                if ref not in inlined:
                    inlined.add(ref)
                    pending.append(resolve_ref(self._root, ref))
            alternatives += [part[name] for name in ("anyOf", "oneOf") if _is_list(part.get(name))]
            if isinstance(all_of := part.get("allOf"), list):
                self._spend(len(all_of))
                pending += all_of
            plain.append(part)
        return True

    def _add_rule(self, ref: str) -> None:
        if ref not in self._known_refs:
            self._known_refs.add(ref)
            self._refs.append(ref)

    def _count_plain(self, parts: Sequence[Mapping[str, Any]], depth: int) -> int:
        """Return the symbols of parts without alternatives."""
        symbols = _SYMBOLS_PER_SCHEMA
        factor = 1
        for part in parts:
            self._spend(_STEPS_PER_SCHEMA)
            for name in ("const", "enum") & part.keys():
                symbols += self._count_constant(part[name])
            if "multipleOf" in part:
                # Two values of `multipleOf` are merged into their common multiple.
                factor *= max(_count_remainders(part["multipleOf"]), 1)
        symbols += _SYMBOLS_PER_REMAINDER * (factor if factor > 1 else 0)
        return symbols + self._count_array(parts, depth) + self._count_object(parts, depth)

    def _count_constant(self, value: Any) -> int:
        """Return the symbols of a constant or of a list of constants.

        A scalar only becomes part of a pattern.
        """
        symbols, pending = 0, [*value] if isinstance(value, list) else [value]
        self._spend(len(pending))
        while pending:
            each = pending.pop()
            symbols += 2
            if isinstance(each, Mapping):
                self._spend(len(each))
                symbols += _SYMBOLS_PER_PROPERTY * len(each)
                pending += each.values()
            elif isinstance(each, list):
                self._spend(len(each))
                symbols += _SYMBOLS_PER_ITEM * len(each)
                pending += each
        return symbols

    def _count_array(self, parts: Sequence[Mapping[str, Any]], depth: int) -> int:
        prefixes = [part["prefixItems"] for part in parts if _is_list(part.get("prefixItems"))]
        longest = max(map(len, prefixes), default=0)
        symbols = _SYMBOLS_PER_ITEM * max(longest, _find_largest(parts, "minItems", "maxItems"))
        rest = _subschemas(parts, "items")
        if rest:
            symbols += self._count_value(rest, depth + 1)
        self._spend(longest * len(prefixes))
        for index in range(longest):
            at_index = [prefix[index] for prefix in prefixes if index < len(prefix)]
            schemas = tuple(each for each in at_index if isinstance(each, Mapping))
            # A part with a shorter prefix contributes its `items` instead.
            symbols += self._count_value(schemas + rest if len(parts) > 1 else schemas, depth + 1)
        return symbols

    def _count_object(self, parts: Sequence[Mapping[str, Any]], depth: int) -> int:
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
        symbols = _SYMBOLS_PER_PROPERTY * len(names)
        if any("minProperties" in part or "maxProperties" in part for part in parts):
            # "At least n properties" becomes one alternative per property, each with all of them.
            symbols += _SYMBOLS_PER_LENGTH + _SYMBOLS_PER_PROPERTY * len(names) ** 2
        symbols += _SYMBOLS_PER_PROPERTY * len(others) * (len(names) + len(others))
        for groups, keys in ((known, names), (patterns, others)):
            for key in keys:
                at_key = [group[key] for group in groups if key in group]
                schemas = tuple(each for each in at_key if isinstance(each, Mapping))
                if schemas or len(parts) > 1:
                    schemas += rest if len(parts) > 1 else ()
                    symbols += self._count_value(schemas, depth + 1) if schemas else 1
        return symbols + (self._count_value(rest, depth + 1) if rest else 0)


class _OptionalParts:
    """Counts the optional items and properties in one row of llguidance's parser."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        # Results by the id of a part; 0 during its own count, so that a circular reference adds 0.
        self._counts: dict[int, int] = {}

    def count(self, part: Any, depth: int = 0) -> int:
        """Return the largest number of optional parts at one position of an answer."""
        if not isinstance(part, Mapping) or depth > _MAX_DEPTH:
            return 0
        if (known := self._counts.get(id(part))) is not None:
            return known
        self._counts[id(part)] = 0
        nested = [0]
        own = max(_count_items(part)[1], _count_start_parts(part))
        merged, combinations = own, 1
        for name, inner in part.items():
            if name in _VALUES or not isinstance(inner, Mapping | list):
                continue
            if name in ("anyOf", "oneOf", "allOf") and isinstance(inner, list):
                merged += sum([self.count(each, depth + 1) for each in inner])
                combinations *= len(inner) if name != "allOf" else 1
            elif name in ("items", "additionalProperties"):
                nested.append(self.count(inner, depth + 1))
            else:
                values = [*inner.values()] if isinstance(inner, Mapping) else inner
                nested += [self.count(each, depth + 1) for each in values]
        if isinstance(ref := part.get("$ref"), str):
            merged += self.count(resolve_ref(self._root, ref), depth + 1)
        # Each alternative is combined with the other keys of the part.
        if "maxItems" in part:
            merged *= combinations
        else:
            merged += own * (combinations - 1)
        self._counts[id(part)] = largest = max(merged, *nested)
        return largest


def _count_start_parts(part: Mapping[str, Any]) -> int:
    """Return the optional parts that the first character of a value adds to a parser row."""
    if "enum" in part or "const" in part:
        return 0
    types = part.get("type")
    if types is None:
        if "properties" in part:
            types = "object"
        elif {"$ref", "anyOf", "oneOf", "allOf"}.isdisjoint(part):
            types = "array"
    names = [types] if isinstance(types, str) else types if isinstance(types, list) else []
    count = _PARTS_PER_ARRAY if "array" in names else 0
    if "object" in names:
        properties, required = part.get("properties"), part.get("required")
        optional = set(properties) if isinstance(properties, Mapping) else set()
        if isinstance(required, list):
            optional.difference_update([each for each in required if isinstance(each, str)])
        count += _PARTS_PER_PROPERTY * len(optional)
        if part.get("additionalProperties", True) is not False:
            count += _PARTS_PER_OPEN_OBJECT
    return count


def _count_items(part: Mapping[str, Any]) -> tuple[int, int]:
    """Return the numbers of required and of optional items of an array."""
    required = _as_count(part.get("minItems"))
    if "maxItems" in part:
        maximum = _as_count(part["maxItems"])
    else:
        prefix = part.get("prefixItems")
        maximum = len(prefix) if isinstance(prefix, list) else 0
    return required, max(maximum - required, 0)


def resolve_ref(schema: Mapping[str, Any], ref: str) -> Any:
    """Return the target of a reference within a schema (RFC 6901), or None."""
    part: Any = schema
    for step in unquote(ref).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, list):
            index = int(step) if re.fullmatch("[0-9]{1,9}", step) else len(part)
            part = part[index] if index < len(part) else None
        else:
            part = part.get(step) if isinstance(part, Mapping) else None
    return part


def _iterate_schemas(
    schema: Mapping[str, Any],
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield each object in a schema that may itself be a schema, with its path."""
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


def _find_part_violation(path: tuple[str, ...], part: Mapping[str, Any]) -> str | None:
    required, optional = _count_items(part)
    if required > MAX_ITEMS:
        name = _format_path(path, "minItems")
        return f"{name} must be at most {MAX_ITEMS}, got {_as_count(part.get('minItems'))}"
    if optional > MAX_OPTIONAL_PARTS:
        if "maxItems" not in part:
            name = _format_path(path, "prefixItems")
            return (
                f"{name} must have at most {MAX_OPTIONAL_PARTS} schemas more than minItems, got "
                f"{len(part['prefixItems'])}"
            )
        name, count = _format_path(path, "maxItems"), _as_count(part["maxItems"])
        return f"{name} must be at most {MAX_OPTIONAL_PARTS} above minItems, got {count}"
    for name in _LENGTHS:
        if (count := _as_count(part.get(name))) > MAX_LENGTH:
            return f"{_format_path(path, name)} must be at most {MAX_LENGTH}, got {count}"
    max_remainders = MAX_SCHEMA_SYMBOLS // _SYMBOLS_PER_REMAINDER
    if "multipleOf" in part and _count_remainders(part["multipleOf"]) > max_remainders:
        return (
            f"{_format_path(path, 'multipleOf')} must have digits that make a number of at most "
            f"{max_remainders}, got {part['multipleOf']}"
        )
    patterns = [("pattern", part["pattern"])] if isinstance(part.get("pattern"), str) else []
    if isinstance(named := part.get("patternProperties"), Mapping):
        patterns += [("patternProperties", pattern) for pattern in named]
    for name, pattern in patterns:
        if (count := count_repetitions(pattern)) > MAX_REPETITIONS:
            return (
                f"{_format_path(path, name)} must repeat its parts at most {MAX_REPETITIONS} "
                f"times, nested counts multiplied, got {count}"
            )
    return None


# Closing brackets are optional: otherwise a missing one would make the search quadratic.
_REPETITION_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]?|[()]|\{(\d*)(?:,(\d*))?\}?", re.DOTALL
)


def count_repetitions(pattern: str) -> int:
    """Return how often a regular expression repeats its parts, nested counts multiplied.

    For each group, the repetitions in it are added, and the sum is multiplied by its own count.
    """
    # Repetitions in each open group, and in the group that was closed last at position `end`.
    open_groups, closed = [0], 0
    end = -1
    for token in _REPETITION_TOKEN.finditer(pattern):
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
            # Another count may follow.
            closed, end = max(inner, 1) * count, token.end()
    return sum(open_groups)


def _format_path(path: tuple[str, ...], name: str) -> str:
    text = ".".join((*path, name))
    return text if len(text) <= 100 else f"{text[:40]}…{text[-50:]}"


def _find_largest(parts: Sequence[Mapping[str, Any]], *names: str) -> int:
    return max((_as_count(part.get(name)) for part in parts for name in names), default=0)


def _as_count(value: Any) -> int:
    """Return a count of a schema as an integer; other code refuses a fractional number."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _count_remainders(value: Any) -> int:
    """Return the number that the digits of a `multipleOf` make without its decimal point."""
    try:
        number = Decimal(str(value)).normalize()
    except InvalidOperation:
        return 0
    if not number.is_finite():
        return 0
    _, digits, exponent = number.as_tuple()
    scale: int = 10 ** max(int(exponent), 0)
    return int("".join(map(str, digits)) or "0") * scale


def _has_constraints(parts: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the parts have constraints apart from their alternatives."""
    ignored = _ANNOTATIONS | {"anyOf", "oneOf", "allOf", "$ref"}
    return any(part.keys() - ignored for part in parts)


def _subschemas(parts: Sequence[Mapping[str, Any]], name: str) -> _Parts:
    return tuple(part[name] for part in parts if isinstance(part.get(name), Mapping))


def _is_list(value: Any) -> bool:
    return isinstance(value, list)
