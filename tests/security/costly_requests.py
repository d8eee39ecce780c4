"""Requests that ask for much: schemas and grammars that grow, and bodies just below the limits."""

from __future__ import annotations

import json
import random
from typing import Any

CHAT = "/v1/chat/completions"
BILLION = 1_000_000_000

# Definitions that use the next one twice: the last is reached in 2**40 ways.
_DOUBLING: dict[str, Any] = {"d40": {}} | {
    f"d{level}": {"prefixItems": [{"$ref": f"#/$defs/d{level + 1}", "minItems": 1}] * 2}
    for level in range(40)
}
COSTLY_SCHEMAS: dict[str, dict[str, Any]] = {
    "minItems": {"type": "array", "minItems": 2 * BILLION},
    "maxItems": {"type": "array", "maxItems": 1_000_000},
    "maxItems that was not held": {"type": "array", "maxItems": 100_000},
    "nested maxItems": {
        "type": "array",
        "maxItems": 900,
        "items": {"type": "array", "maxItems": 900_000},
    },
    "minLength": {"type": "string", "minLength": 2 * BILLION},
    "maxLength": {"type": "string", "maxLength": 2 * BILLION},
    "minProperties": {"type": "object", "minProperties": BILLION},
    "maxProperties": {"type": "object", "maxProperties": BILLION},
    "pattern": {"type": "string", "pattern": "^(a{1,10000}){1,10000}$"},
    "multipleOf": {"type": "integer", "multipleOf": 99_999_989},
    "in a property": {"type": "object", "properties": {"a": {"minItems": BILLION}}},
    "in a definition": {"$defs": {"a": {"minItems": BILLION}}, "$ref": "#/$defs/a"},
    "alternatives": {"allOf": [{"anyOf": [{"minItems": n} for n in range(50)]} for _ in range(4)]},
    "doubling": {"$defs": _DOUBLING, "$ref": "#/$defs/d0"},
    "reference to itself": {"anyOf": [{"$ref": "#", "maxItems": 1}]},
    "many merges": {"anyOf": [{"minItems": 1}] * 1_900, "enum": [1] * 15_000},
}
COSTLY_GRAMMARS = {
    "repetition": 'root ::= "a"{2000000000}',
    "nested repetition": 'root ::= (("a"{1,1000}){1,1000}){1,1000}',
    "groups": "root ::= " + "(" * 5_000 + '"a"' + ")" * 5_000,
    "length": 'root ::= "' + "a" * 200_000 + '"',
}


def _chain(rule: str, last: str) -> str:
    return "".join(rule.format(n, n + 1) for n in range(4_000)) + last


def _double(rule: str, last: str) -> str:
    return "".join(rule.format(n, n + 1) for n in range(18)) + last


_PERMUTATIONS = " | ".join(
    f'"{letter}" p::set_bit({bit}) %if bit_clear({bit})'
    for bit, letter in enumerate("abcdefghijklmnopqrst")
)
_OPTIONAL = {"type": "object", "properties": {"a": {"type": "array", "maxItems": 900}}}
# Grammars that end llguidance or llama.cpp, or keep them busy: each with its notation.
HOSTILE_GRAMMARS: dict[str, tuple[Any, str]] = {
    "smallest integer": ("lark", 'start: %json {"const":-9223372036854775808}'),
    "smallest integer in a rule": ("lark", 'start: a\na: %json{"enum": [1, -9223372036854775808]}'),
    "remainders": ("lark", 'start: %json {"type":"integer","multipleOf":99999999}'),
    "items": ("lark", 'start: %json {"type":"array","minItems":100000000}'),
    "alternatives of a schema": (
        "lark",
        "start: %json "
        + json.dumps({"anyOf": [{**_OPTIONAL, "title": str(n)} for n in range(300)]}),
    ),
    "chain of rules": ("lark", "start: r0\n" + _chain("r{}: r{}\n", 'r4000: "a"')),
    "chain of terminals": ("lark", "start: T0\n" + _chain("T{}: T{}\n", 'T4000: "a"')),
    "chain in GBNF": ("gbnf", "root ::= r0\n" + _chain("r{} ::= r{}\n", 'r4000 ::= "a"')),
    "doubling rules": ("lark", "start: r0\n" + _double("r{0}: r{1} r{1}\n", 'r18: "a"')),
    "doubling terminals": ("lark", "start: T0\n" + _double("T{0}: T{1} T{1}\n", 'T18: "a"')),
    "doubling in GBNF": (
        "gbnf",
        "root ::= r0\n" + _double("r{0} ::= r{1} r{1}\n", 'r18 ::= "a"?'),
    ),
    "alternatives": ("gbnf", "root ::= " + "|".join(f'[a-z]* "{n}"' for n in range(3_000))),
    "ambiguity": ("lark", 'start: s\ns: s s | s s s | "a" | /[a-z ]/ |'),
    "ambiguity after a text": (
        "lark",
        f'start: "{"a" * 60}" x\nx: x x | "a" | "b" | x x x | x x x x',
    ),
    "permutations after a text": ("lark", f'start: "{"a" * 60}" p::0\np::_: {_PERMUTATIONS}'),
    "alternatives after a text": (
        "lark",
        f'start: "{"a" * 60}" ' + "(a|b) " * 20 + '\na: a a | "x"\nb: a b | b a | "x"',
    ),
    "expression after a text": (
        "lark",
        f'start: "{"a" * 60}" T\nT: /(.*a){{50}}.*/ & /(.*b){{50}}.*/ & ~/(.*c){{50}}.*/',
    ),
    "groups": ("lark", "start: " + "(" * 399 + '"a"' + ")" * 399),
    "endless recursion": ("gbnf", "root ::= root"),
}
# As large as is accepted, each in its own way.
LARGEST_SCHEMAS: dict[str, dict[str, Any]] = {
    "minItems": {"type": "array", "items": {"const": 1}, "minItems": 5_000},
    "maxItems": {"type": "array", "items": {"const": 1}, "maxItems": 1_000},
    "maxLength": {"type": "string", "maxLength": 65_536},
    "properties": {
        "type": "object",
        "properties": {f"k{number}": {"type": "string"} for number in range(1_000)},
        "required": [f"k{number}" for number in range(1_000)],
    },
    "optional properties": {
        "type": "object",
        "properties": {f"k{number}": {"type": "string"} for number in range(498)},
    },
    "enum": {"enum": [f"k{number}" for number in range(5_000)]},
}


def chat(**fields: Any) -> bytes:
    """Return the body of a chat call with one short message."""
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **fields}
    return json.dumps(body).encode()


def with_schema(schema: dict[str, Any]) -> bytes:
    """Return the body of a chat call whose answer is to fit a schema."""
    response_format = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    return chat(response_format=response_format)


def with_tool(schema: dict[str, Any]) -> bytes:
    """Return the body of a chat call that must call a function with such parameters."""
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    return chat(tools=[tool], tool_choice="required")


def random_attack(rng: random.Random) -> bytes:
    """Return the body of one costly chat call, different from all others."""
    schema = rng.choice([*COSTLY_SCHEMAS.values(), *LARGEST_SCHEMAS.values()])
    for _ in range(rng.randrange(4)):
        count = rng.choice([1, 10, 1_000, 100_000, BILLION])
        schema = rng.choice(
            [
                {"type": "array", "items": schema, "maxItems": count},
                {"type": "array", "prefixItems": [schema] * rng.randrange(1, 4)},
                {"type": "object", "properties": {"a": schema}, "minProperties": count},
                {"anyOf": [schema, {"type": "string", "maxLength": count}]},
                {"allOf": [schema, {"minItems": count}]},
            ]
        )
    # A description that differs: no schema is known from an earlier request.
    schema = {**schema, "description": str(rng.random())}
    return rng.choice([with_schema, with_tool])(schema)
