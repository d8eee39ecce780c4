"""Answers against schemas, and hostile schemas."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from validation.issues import Issue
from validation.options import MissingPart
from validation.options.schema import MAX_ISSUES, SchemaCheck

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2},
        "age": {"type": "integer", "minimum": 0},
        "mail": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}},
        "friend": {"$ref": "#"},
    },
    "required": ["name"],
    "additionalProperties": False,
}
NOT_JSON = "schema_not_json"
MISMATCH = "schema_mismatch"


def billion_laughs(count: int) -> dict[str, Any]:
    """Return a schema that applies 2^count subschemas to one value."""
    names = [f"#/$defs/{n + 1}" for n in range(count)]
    parts: dict[str, Any] = {
        str(n): {"allOf": [{"$ref": name}, {"$ref": name}]} for n, name in enumerate(names)
    }
    return {"$defs": {**parts, str(count): {}}, "$ref": "#/$defs/0"}


def shared(count: int) -> dict[str, Any]:
    """Return a schema with `count` references to one large `allOf`."""
    definitions: dict[str, Any] = {"$defs": {"many": {"allOf": [{}] * 4_000}}}
    return {**definitions, "properties": {f"p{n}": {"$ref": "#/$defs/many"} for n in range(count)}}


def chain(count: int) -> dict[str, Any]:
    parts: dict[str, Any] = {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(count)}
    return {"$defs": {**parts, str(count): {}}, "$ref": "#/$defs/0"}


def find_issues(schema: dict[str, Any], text: str) -> list[tuple[str, str]]:
    return [(issue.rule, issue.message) for issue in SchemaCheck(schema).find_issues(text)]


def mismatch(description: str) -> list[tuple[str, str]]:
    return [(MISMATCH, f"The answer does not match the JSON schema{description}.")]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ada"}',
        ' \r\n\t{"name": "Ada"}\n\n',
        '```json\n{"name": "Ada"}\n```',
        '\n```JSON \n{"name":\n"Ada"}\n  ```\n',
        '{"name": "Ada", "tags": ["a", "b"], "friend": {"name": "Bob", "friend": {"name": "Cy"}}}',
        '{"name": "``` json"}',
    ],
)
def test_valid_answer_has_no_issues(text: str) -> None:
    assert find_issues(PERSON, text) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "The answer is empty, and JSON was asked for."),
        (" \n", "The answer is empty, and JSON was asked for."),
        ("Here: {}", "unexpected character, expected a JSON value in line 1, column 1."),
        ('{"name": "Ada"', "in line 1, column 15."),
        ('{\n"name": Ada}', "in line 2, column 9."),
        ('{"name": "Ada"} Anything else?', "in line 1, column 17."),
        ('```\n{"name": "Ada"}\n```', "in line 1, column 1."),
        ('```json\n{"name": "Ada"}', "in line 1, column 1."),
        ('```json\n{"name": "Ada"}\n``` done', "in line 1, column 1."),
        ('```json\n```json\n{"name": "Ada"}\n```\n```', "in line 1, column 1."),
        ("{'name': 'Ada'}", "in line 1, column 2."),
        ('{"age": NaN}', "in line 1, column 9."),
        ('{"name": "\ud800"}', "surrogates not allowed in line 1"),
        ("[" * 100_000, "depth limit exceeded in line 1"),
    ],
)
def test_answer_that_is_not_json_is_reported(text: str, message: str) -> None:
    [(rule, description)] = find_issues(PERSON, text)
    assert rule == NOT_JSON
    assert message in description


@pytest.mark.parametrize(
    ("schema", "text", "message"),
    [
        (PERSON, '"Ada"', ": it must be an object, not a string"),
        (PERSON, "{}", ": name is missing"),
        (PERSON, '{"name": "Ada", "x": 1}', ": x must not be there"),
        (PERSON, '{"name": 3}', " at name: it must be a string, not a number"),
        (PERSON, '{"name": "A"}', " at name: it is shorter than 2 characters"),
        (PERSON, '{"name": "Ada", "age": -1}', " at age: it is less than the minimum of 0"),
        (PERSON, '{"name": "Ada", "age": 1.5}', " at age: it must be an integer, not a number"),
        (PERSON, '{"name": "Ada", "mail": "x"}', " at mail: it is no valid email"),
        (
            PERSON,
            '{"name": "Ada", "friend": {"name": "Bob", "tags": ["a", "B"]}}',
            " at friend, tags, item 2: it does not match the pattern ^[a-z]+$",
        ),
        ({"type": ["string", "null"]}, "[]", ": it must be null or a string, not an array"),
        ({"enum": [1, "a"]}, "2", ': it must be one of 1, "a"'),
        ({"const": {"a": 1}}, "2", ': it must be {"a":1}'),
        ({"anyOf": [{"type": "null"}, False]}, "2", ": it fits none of the alternatives"),
        ({"oneOf": [{}, True]}, "2", ": it fits more than one of the alternatives"),
        ({"not": {}}, "2", ": it is what it must not be"),
        ({"contains": {"const": 1}}, "[2]", ": none of its items is what one of them must be"),
        ({"propertyNames": {"maxLength": 1}}, '{"ab": 1}', ": one of its names is not allowed"),
        ({"properties": {"a": False}}, '{"a": 1}', " at a: nothing is allowed here"),
        ({"uniqueItems": True}, "[1, 1]", ": it has non-unique elements"),
        ({"items": {"items": False}}, "[[], [1]]", " at item 2, item 1: nothing is allowed here"),
    ],
)
def test_mismatch_is_described(schema: dict[str, Any], text: str, message: str) -> None:
    assert find_issues(schema, text) == mismatch(message)


def test_long_paths_and_values_are_shortened() -> None:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(20):
        deep = {"properties": {"a": deep}}
    [(_, message)] = find_issues(deep, '{"a":' * 20 + '"' + "x" * 10_000 + '"' + "}" * 20)
    assert message == (
        "The answer does not match the JSON schema at a, a, a, a, …, a, a, a: "
        "it must be an integer, not a string."
    )
    assert len(find_issues({"enum": ["y" * 1000] * 2}, '"x"')[0][1]) < 250
    assert (
        len(find_issues({"additionalProperties": False}, '{"' + "k" * 10_000 + '": 1}')[0][1]) < 250
    )


def test_issues_are_limited_and_unique() -> None:
    text = json.dumps([*["x"] * 3, *range(100)])
    assert len(find_issues({"items": {"type": "null"}}, text)) == MAX_ISSUES
    assert len(find_issues({"allOf": [{"type": "null"}, {"type": "null"}]}, "1")) == 1


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "strin"}, 'invalid at type: "strin" is not allowed there'),
        (
            {"properties": {"a": {"items": {"minLength": -1}}}},
            "invalid at properties.a.items.minLength: it is less than the minimum of 0",
        ),
        ({"required": "a"}, 'invalid at required: it is not of type "array"'),
        (
            {"properties": {"a": {"pattern": "("}}},
            'invalid at properties.a.pattern: the pattern "(" must be a regular expression without',
        ),
        ({"pattern": "(?=a)b"}, 'the pattern "(?=a)b" must be a regular expression without'),
        ({"pattern": r"(a)\1"}, "must be a regular expression without look-around and back-ref"),
        ({"$ref": "#/$defs/x"}, "cannot be used: $ref '#/$defs/x' points at nothing"),
        ({"$ref": "#x"}, "cannot be used: $ref '#x' points at nothing"),
        ({"items": {"$ref": "x.json"}}, "cannot be used: $ref 'x.json' points outside of it"),
        ({"$schema": "https://example.com/s"}, "Unknown meta-schema"),
        ({"$ref": "#"}, "refers to itself in a circle"),
        (
            {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {}]}}, "$ref": "#/$defs/a"},
            "refers to itself in a circle",
        ),
        ({"properties": {"a": {"$id": "http://x/y"}}}, "only its root may have an $id"),
        ({"default": {1, 2}}, "is not JSON: Type is not JSON serializable: set"),
        ({"maximum": 2**80}, "is not JSON: Integer exceeds 64-bit range"),
        (billion_laughs(40), "it would look at one value more than 10000 times"),
        ({"properties": {f"p{n}": {} for n in range(10_001)}}, "it has more than 10000 parts"),
        (shared(60), "its parts refer to each other too often"),
        (chain(201), "more than 200 of its parts are nested or refer on"),
        ({"allOf": [{"pattern": f"a{n}"} for n in range(33)]}, "it has 33 patterns, and 32 are"),
    ],
)
def test_unusable_schema_is_rejected(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^The JSON schema .*\.$") as caught:
        SchemaCheck(schema)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_schema_must_be_an_object() -> None:
    with pytest.raises(ValueError, match=r"^The JSON schema must be an object, not an array\.$"):
        SchemaCheck([])  # type: ignore[arg-type]


def test_check_copies_the_schema() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    check = SchemaCheck(schema)
    schema["properties"]["a"]["type"] = "string"
    assert check.find_issues('{"a": 1}') == ()


@pytest.mark.parametrize(
    "schema",
    [
        {"$anchor": "top", "properties": {"a": {"$ref": "#top"}}, "type": "object"},
        {"$id": "http://x/y", "properties": {"a": {"$ref": "#/$defs/o"}}, "$defs": {"o": {}}},
        {"$defs": {"a/b~c d": {}}, "$ref": "#/$defs/a~1b~0c%20d"},
        {"allOf": [{"type": "object"}], "$ref": "#/allOf/0"},
        {"$dynamicAnchor": "n", "properties": {"a": {"$dynamicRef": "#n"}}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"o": {"$id": "#o", "type": "object"}},
            "properties": {"a": {"$ref": "#o"}},
        },
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "properties": {"l": {"items": [{"type": "null"}, False], "additionalItems": {}}},
            "dependencies": {"a": ["b"], "c": {"required": ["d"]}},
        },
        {"properties": {"$id": {"type": "string"}, "$ref": {"type": "string"}}},
        {"prefixItems": [{"type": "string"}, True], "items": {"$ref": "#"}},
    ],
)
def test_references_within_a_schema_are_followed(schema: dict[str, Any]) -> None:
    assert SchemaCheck(schema).find_issues('{"a": {}, "b": {"a": {}}}') == ()


class Listener:
    """Counts connections."""

    def __init__(self) -> None:
        self.calls = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/schema.json"
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection:
                if connection.recv(4) == b"stop":
                    return
                self.calls += 1
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    def close(self) -> None:
        with socket.create_connection(self._socket.getsockname()) as connection:
            connection.sendall(b"stop")
        self._thread.join()
        self._socket.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


def test_external_references_are_not_fetched(listener: Listener) -> None:
    url = listener.url
    for schema in (
        {"$ref": url},
        {"$schema": url},
        {"properties": {"a": {"$ref": url}}},
        {"$defs": {"never used": {"$ref": url}}},
        {"$id": url, "$ref": "other.json"},
        {"$id": url, "$dynamicRef": "other.json#x"},
        {"properties": {"a": {"$ref": "file:///etc/hostname"}}},
    ):
        with pytest.raises(ValueError, match="JSON schema"):
            SchemaCheck(schema)
    assert SchemaCheck({"$id": url, "const": {"$ref": url}}).find_issues('"x"')
    assert listener.calls == 0
    # Without SchemaCheck the library fetches the URL.
    jsonschema_rs.validator_for({"$ref": url})
    assert listener.calls == 1


def nested(depth: int, leaf: str = "1") -> str:
    return '{"a":' * depth + leaf + "}" * depth


def doubling(count: int) -> dict[str, Any]:
    """Return a schema that compares a value at depth `count` 2^count times."""
    parts: dict[str, Any] = {}
    for n in range(count):
        below = {"properties": {"a": {"$ref": f"#/$defs/{n + 1}"}}}
        parts[str(n)] = {"allOf": [below, below], "unevaluatedProperties": False}
    return {"$defs": {**parts, str(count): {"type": "null"}}, "$ref": "#/$defs/0"}


def unevaluated(count: int) -> dict[str, Any]:
    """Return a schema with `unevaluatedProperties`, which repeats the work at each level."""
    parts: dict[str, Any] = {}
    for n in range(count):
        below = {"patternProperties": {"a": {"$ref": f"#/$defs/{n + 1}"}}}
        parts[str(n)] = {
            "allOf": [{**below, "unevaluatedProperties": False}, below],
            "unevaluatedProperties": False,
        }
    return {"$defs": {**parts, str(count): {}}, "$ref": "#/$defs/0"}


RECURSIVE = {
    "anyOf": [
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": [name]} for name in "bcd"
    ]
}
LONG_ARRAY = json.dumps(list(range(100_000)))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"pattern": "^(a+)+$"}, json.dumps("a" * 200_000 + "!")),
        ({"pattern": "^(a|a)*$"}, json.dumps("a" * 200_000 + "!")),
        ({"pattern": "(.*)*(.*)*(.*)*x"}, json.dumps("a" * 200_000)),
        ({"patternProperties": {"^(a+)+$": False}}, json.dumps({"a" * 50_000 + "!": 1})),
        ({"pattern": "((a{1,100}){1,100}){1,100}"}, '"a"'),
        ({"format": "regex"}, json.dumps("(a{1,1000}){1,1000}" * 1000)),
        ({"format": "email"}, json.dumps("a@" * 200_000)),
        (billion_laughs(40), "1"),
        (billion_laughs(12), "1"),
        (doubling(40), nested(40)),
        (doubling(12), nested(12)),
        (unevaluated(15), nested(15)),
        (RECURSIVE, nested(40)),
        (RECURSIVE, nested(11)),
        ({"allOf": [{"type": "string"}] * 5_000}, LONG_ARRAY),
        ({"anyOf": [{"type": "string"}] * 5_000}, LONG_ARRAY),
        ({"items": {"allOf": [{"type": "string"}] * 1_000}}, LONG_ARRAY),
        (
            {"$defs": {"u": {"uniqueItems": True}}, "allOf": [{"$ref": "#/$defs/u"}] * 3_000},
            LONG_ARRAY,
        ),
        ({"required": [f"p{n}" for n in range(9_000)]}, "{}"),
        ({"enum": [{"a": n} for n in range(9_000)]}, "{}"),
        (shared(4_000), json.dumps({f"p{n}": 1 for n in range(4_000)})),
        ({"properties": {f"p{n}": {} for n in range(20_000)}}, "{}"),
        ({"type": "string"}, LONG_ARRAY),
        ({"items": {"type": "string"}}, LONG_ARRAY),
    ],
)
def test_costly_schemas_and_answers_are_fast(schema: dict[str, Any], text: str) -> None:
    start = time.thread_time()
    try:
        issues = SchemaCheck(schema).find_issues(text)
    except ValueError as error:
        assert len(str(error)) < 500  # noqa: PT017
    else:
        assert len(issues) <= MAX_ISSUES
    assert time.thread_time() - start < 6


def test_ordinary_answer_is_compared() -> None:
    people = [{"name": "Ada", "age": n, "tags": ["a", "b"]} for n in range(1_000)]
    schema = {"type": "array", "items": PERSON}
    assert SchemaCheck(schema).find_issues(json.dumps(people)) == ()
    people[700]["age"] = "old"
    assert find_issues(schema, json.dumps(people)) == mismatch(
        " at item 701, age: it must be an integer, not a string"
    )
    tree = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    assert find_issues(tree, nested(100, "{}")) == mismatch(
        " at a, a, a, a, …, a, a, a: a is missing"
    )
    assert find_issues(RECURSIVE, nested(4, '"x"')) == mismatch(
        ": it fits none of the alternatives"
    )


def test_answer_that_is_too_large_is_reported() -> None:
    assert find_issues({"items": {"type": "string"}}, LONG_ARRAY) == mismatch(
        ": it is too large to say where"
    )
    for schema, text in ((RECURSIVE, nested(40)), ({"items": {"allOf": [{}] * 50}}, LONG_ARRAY)):
        assert find_issues(schema, text) == mismatch(": it is too large to be compared with it")


def test_missing_package_raises_missing_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(MissingPart, match=r"`pip install jsonschema-rs` adds it\.$") as caught:
        SchemaCheck(PERSON)
    assert caught.value.package == "jsonschema-rs"


def test_threads_share_one_check() -> None:
    check = SchemaCheck(PERSON)
    results: list[tuple[Issue, ...]] = []
    threads = [
        threading.Thread(target=lambda: results.extend(check.find_issues("{}") for _ in range(100)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 400
    assert len(set(results)) == 1
