"""A parser for the part of PromQL that dashboards and alerts here use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    |(?P<range>\[[^\]]+\])
    |(?P<number>\d+(?:\.\d+)?(?:[smhdwy]\b)?)
    |(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)
    |(?P<mark>=~|!~|!=|==|>=|<=|[-+*/%^<>=(){},])
    )""",
    re.VERBOSE,
)
_RANGE = re.compile(r"\[(?:\d+[smhdwy]|\$__(?:rate_interval|interval|range))\]")
_GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = {"and", "or", "unless", "bool"}
_AGGREGATIONS = {"sum", "min", "max", "avg", "count", "topk"}
# Functions whose argument is a counter.
COUNTING = {"rate", "irate", "increase"}
_FUNCTIONS = {*COUNTING, "histogram_quantile", "clamp_min", "vector", "absent", "label_values"}


@dataclass(frozen=True)
class Selector:
    """A metric, its conditions as (label, operator, value), and the function around it."""

    name: str
    conditions: Sequence[tuple[str, str, str]]
    function: str
    ranged: bool


@dataclass
class Expression:
    """The metrics that an expression reads, and the labels by which it groups or joins."""

    selectors: list[Selector] = field(default_factory=list)
    labels: set[str] = field(default_factory=set)


def read(text: str) -> Expression:
    """Parse an expression. Raises ValueError."""
    tokens = _tokens(text)
    expression = Expression()
    opened: list[str] = []
    at = 0
    while at < len(tokens):
        kind, token = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        at += 1
        if kind == "name" and token in _GROUPING:
            at, labels = _listed(tokens, at)
            expression.labels |= labels
        elif kind == "name" and following == "(":
            if token not in _FUNCTIONS | _AGGREGATIONS:
                raise ValueError(f"there is no function {token}: {text}")
            opened.append(token)
            at += 1
        elif kind == "name" and token in _AGGREGATIONS and following in _GROUPING:
            at, labels = _listed(tokens, at + 1)
            expression.labels |= labels
            if at >= len(tokens) or tokens[at][1] != "(":
                raise ValueError(f"nothing is aggregated: {text}")
            opened.append(token)
            at += 1
        elif kind == "name" and token not in _WORDS:
            conditions: list[tuple[str, str, str]] = []
            if following == "{":
                at, conditions = _conditions(tokens, at + 1)
            ranged = at < len(tokens) and tokens[at][0] == "range"
            function = opened[-1] if opened else ""
            expression.selectors.append(Selector(token, conditions, function, ranged))
            at += ranged
        elif token == "(":
            opened.append("")
        elif token == ")":
            if not opened:
                raise ValueError(f"a bracket too many: {text}")
            opened.pop()
    if opened:
        raise ValueError(f"a bracket is left open: {text}")
    return expression


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"not PromQL: {text[at:]!r}")
        kind = match.lastgroup or ""
        if kind == "range" and not _RANGE.fullmatch(match[kind]):
            raise ValueError(f"no time: {match[kind]}")
        tokens.append((kind, match[kind]))
        at = match.end()
    return tokens


def _listed(tokens: Sequence[tuple[str, str]], at: int) -> tuple[int, set[str]]:
    """Read `(a, b)`; return the index after it and the labels."""
    labels = set()
    if tokens[at][1] != "(":
        raise ValueError("labels stand in brackets")
    at += 1
    while tokens[at][1] != ")":
        if tokens[at][0] == "name":
            labels.add(tokens[at][1])
        at += 1
    return at + 1, labels


def _conditions(
    tokens: Sequence[tuple[str, str]], at: int
) -> tuple[int, list[tuple[str, str, str]]]:
    """Read `a="b", c=~"d"}`; return the index after it and the conditions."""
    conditions = []
    while tokens[at][1] != "}":
        (kind, label), (_, operator), (quoted, value) = tokens[at : at + 3]
        if kind != "name" or operator not in ("=", "!=", "=~", "!~") or quoted != "string":
            raise ValueError(f"no condition: {label} {operator} {value}")
        conditions.append((label, operator, value[1:-1]))
        at += 3
        at += tokens[at][1] == ","
    return at + 1, conditions
