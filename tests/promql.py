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
    reader = _Reader(text)
    while reader.at < len(reader.tokens):
        kind, token = reader.tokens[reader.at]
        reader.at += 1
        if kind == "name":
            reader.read_name(token)
        elif token in "()":
            reader.read_bracket(token)
    if reader.opened:
        raise ValueError(f"a bracket is left open: {text}")
    return reader.expression


class _Reader:
    """Reads the tokens of an expression, and what it opens: functions, and brackets as ""."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.at = 0
        self.opened: list[str] = []
        self.expression = Expression()

    def read_name(self, name: str) -> None:
        following = self._next_token()
        if name in _GROUPING:
            self._read_labels()
        elif following == "(":
            if name not in _FUNCTIONS | _AGGREGATIONS:
                raise ValueError(f"there is no function {name}: {self.text}")
            self._open(name)
        elif name in _AGGREGATIONS and following in _GROUPING:
            self.at += 1
            self._read_labels()
            if self._next_token() != "(":
                raise ValueError(f"nothing is aggregated: {self.text}")
            self._open(name)
        elif name not in _WORDS:
            self._read_selector(name)

    def read_bracket(self, bracket: str) -> None:
        if bracket == "(":
            self.opened.append("")
        elif self.opened:
            self.opened.pop()
        else:
            raise ValueError(f"a bracket too many: {self.text}")

    def _next_token(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def _open(self, function: str) -> None:
        self.opened.append(function)
        self.at += 1

    def _read_labels(self) -> None:
        self.at, labels = _listed(self.tokens, self.at)
        self.expression.labels |= labels

    def _read_selector(self, name: str) -> None:
        conditions: list[tuple[str, str, str]] = []
        if self._next_token() == "{":
            self.at, conditions = _conditions(self.tokens, self.at + 1)
        ranged = self.at < len(self.tokens) and self.tokens[self.at][0] == "range"
        function = self.opened[-1] if self.opened else ""
        self.expression.selectors.append(Selector(name, conditions, function, ranged))
        self.at += ranged


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
