"""The check of an answer against a JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from validation.issues import Issue
from validation.options import MissingPart
from validation.options.schema_cost import SchemaCost

MAX_ISSUES = 5
# A compiled pattern may take up to 10 MB.
MAX_PATTERNS = 32
# Limits of the comparisons of schema parts with values, at about 20 ns each. Finding the errors
# takes 5 µs per comparison, and about 50 bytes for each copy of a value.
MAX_COMPARISONS = 20_000_000
MAX_EXPLAINED_COMPARISONS = 100_000
MAX_COPIES = 2_000_000

_MAX_TEXT_CHARS = 60
# White space according to JSON; str.strip removes more.
_FENCED = re.compile(r"\A```json[ \t\r]*\n(.*)\n[ \t]*```\Z", re.DOTALL | re.IGNORECASE)
_JSON_SPACE = " \t\r\n"


class SchemaCheck:
    """Checks answers against one JSON Schema, which may be from an untrusted client.

    Patterns use an engine without backtracking, external references are not fetched, and schemas of
    exponential cost are rejected, so the time is bounded.

    Raises:
        ValueError: the schema cannot be used; one sentence with the place and the reason.
        MissingPart: jsonschema-rs is not installed.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            import jsonschema_rs
        except ImportError:
            raise MissingPart("Checking answers against a JSON schema", "jsonschema-rs") from None
        if not isinstance(schema, Mapping):
            raise ValueError(f"The JSON schema must be an object, not {_describe_type(schema)}.")
        try:
            schema_copy = orjson.loads(orjson.dumps(dict(schema)))
        except (TypeError, orjson.JSONDecodeError) as error:
            raise ValueError(f"The JSON schema is not JSON: {error}.") from None
        try:
            patterns = _count_patterns(schema_copy)
            if patterns > MAX_PATTERNS:
                raise ValueError(f"it has {patterns} patterns, and {MAX_PATTERNS} are allowed")
            self._cost = SchemaCost(schema_copy)
        except ValueError as error:
            raise ValueError(f"The JSON schema cannot be used: {error}.") from None
        try:
            self._validator = jsonschema_rs.validator_for(
                schema_copy,
                # The default engine backtracks for lookaround and backreferences; this one rejects
                # such patterns (docs.rs/regex: "worst case O(m * n)").
                pattern_options=jsonschema_rs.RegexOptions(),
                validate_formats=True,
                offline=True,
                mask="it",
            )
        except jsonschema_rs.ValidationError as error:
            raise ValueError(_describe_invalid_schema(error)) from None
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            raise ValueError(f"The JSON schema cannot be used: {error}.") from None

    def find_issues(self, text: str) -> tuple[Issue, ...]:
        """Return the first MAX_ISSUES issues of an answer."""
        body = text.strip(_JSON_SPACE)
        fenced = _FENCED.match(body)
        try:
            value = orjson.loads(fenced.group(1) if fenced else body)
        except orjson.JSONDecodeError as error:
            return (Issue("schema_not_json", _not_json(body, error)),)
        cost = self._cost.estimate(value, MAX_COMPARISONS)
        if cost is None:
            return (_mismatch_issue("it is too large to be compared with it"),)
        if self._validator.is_valid(value):
            return ()
        if cost.comparisons > MAX_EXPLAINED_COMPARISONS or cost.copies > MAX_COPIES:
            return (_mismatch_issue("it is too large to say where"),)
        issues: dict[str, Issue] = {}
        for fault in self._validator.iter_errors(value):
            issue = _mismatch_issue(_describe_error(fault), fault.instance_path)
            issues.setdefault(issue.message, issue)
            if len(issues) == MAX_ISSUES:
                break
        return tuple(issues.values())


def _mismatch_issue(description: str, path: Sequence[str | int] = ()) -> Issue:
    where = f" at {_format_path(path)}" if path else ""
    return Issue(
        "schema_mismatch", f"The answer does not match the JSON schema{where}: {description}."
    )


def _format_path(path: Sequence[str | int]) -> str:
    """Return a path as text, with items counted from one."""
    steps = [f"item {step + 1}" if isinstance(step, int) else _shorten(step) for step in path]
    if len(steps) > 8:
        steps = [*steps[:4], "…", *steps[-3:]]
    return ", ".join(steps)


def _not_json(body: str, error: orjson.JSONDecodeError) -> str:
    if not body:
        return "The answer is empty, and JSON was asked for."
    return f"The answer is not JSON: {error.msg} in line {error.lineno}, column {error.colno}."


# Descriptions of errors that need no value of the answer or of the schema.
_DESCRIPTIONS = {
    "contains": "none of its items is what one of them must be",
    "falseSchema": "nothing is allowed here",
    "not": "it is what it must not be",
    "propertyNames": "one of its names is not allowed",
}


def _describe_error(error: Any) -> str:
    keyword, value = error.kind.name, error.kind.value
    match keyword:
        case "type":
            return f"it must be {_format_types(value)}, not {_describe_type(error.instance)}"
        case "required":
            return f"{_shorten(value)} is missing"
        case "additionalProperties" | "unevaluatedProperties":
            return f"{_format_list(value, 5, _shorten)} must not be there"
        case "enum":
            return f"it must be one of {_format_list(value, 10, _format_json)}"
        case "const":
            return f"it must be {_format_json(value)}"
        case "pattern":
            return f"it does not match the pattern {_shorten(value)}"
        case "format":
            return f"it is no valid {_shorten(value)}"
        case "anyOf" | "oneOf":
            count = "more than one" if "more than one" in str(error.message) else "none"
            return f"it fits {count} of the alternatives"
        case _ if keyword in _DESCRIPTIONS:
            return _DESCRIPTIONS[keyword]
        case _:
            return _shorten(str(error.message).split("\n")[0], 160)


_TYPE_NAMES = {
    "array": "an array",
    "boolean": "true or false",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}


def _format_types(names: Sequence[str]) -> str:
    return " or ".join(_TYPE_NAMES.get(name, name) for name in names)


def _describe_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list() | tuple():
            return "an array"
        case _:
            return "an object"


def _describe_invalid_schema(error: Any) -> str:
    first = str(error.message).split("\n")[0]
    if error.kind.name == "referencing":
        return f"The JSON schema cannot be used: {_shorten(first, 200)}."
    path = ".".join(map(str, error.instance_path)) or "its root"
    value = _format_json(error.instance)
    if error.kind.name == "format" and error.kind.value == "regex":
        return (
            f"The JSON schema is invalid at {path:.200}: the pattern {value} must be a regular "
            "expression without look-around and back-references that compiles to 10 MB at most."
        )
    problem = f"{value} is not allowed there"
    if error.kind.name not in {"anyOf", "oneOf"}:
        problem = _shorten(first, 200)
    return f"The JSON schema is invalid at {path:.200}: {problem}."


def _format_list(values: Sequence[Any], max_values: int, format_value: Callable[[Any], str]) -> str:
    return ", ".join(map(format_value, values[:max_values])) + (
        ", …" if len(values) > max_values else ""
    )


def _format_json(value: Any) -> str:
    return _shorten(orjson.dumps(value).decode())


def _shorten(text: str, length: int = _MAX_TEXT_CHARS) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"


def _count_patterns(schema: Any) -> int:
    count, pending = 0, [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            count += isinstance(part.get("pattern"), str)
            named = part.get("patternProperties")
            count += len(named) if isinstance(named, dict) else 0
            pending += part.values()
    return count
