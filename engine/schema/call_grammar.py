"""The grammar of an answer that is any text, and whose calls follow the schemas of functions.

The grammar begins with a call's mark, so a model that calls nothing writes what it wants.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.reply.reply_format import ToolForm
from engine.schema.client_grammar import LARK_HEADER
from engine.schema.grammar import SCHEMA_OPTIONS
from engine.schema.held_schema import find_held_schema

# A text ends before the mark of a call, which begins where the text ends. The last of these rules
# is one text with the mark, because the lexer takes the longest text that a single rule allows.
_MARKED_START = """start: {start}
ANY: /(?s:.*)/
TEXT: ANY & ~(ANY "<tool_call>" ANY)
TEXT_AND_MARK: TEXT "<tool_call>"
call: SPACE body SPACE "</tool_call>"
SPACE: /[ \\n]{{0,2}}/
"""
# Here the answer as a whole is a call, or begins otherwise.
_UNMARKED_START = """start: TEXT | body
ANY: /(?s:.*)/
TEXT: ANY & ~(({heads}) ANY)
"""
_DEFINITIONS = ("$defs", "definitions")
# The keywords of a text that may be any text.
_FREE_TEXT = frozenset({"default", "description", "example", "examples", "title", "type"})
# The keywords of a function's parameters that are held one by one, and those without a meaning.
_XML_KEYWORDS = frozenset(
    {*_FREE_TEXT, *_DEFINITIONS, "$schema", "additionalProperties", "properties", "required"}
)
_MAX_REFS = 20


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """A grammar of answers with calls, and what of the functions' schemas it does not hold."""

    text: str
    left_out: tuple[str, ...] = ()


def build_call_grammar(
    functions: Mapping[str, Mapping[str, Any]], form: ToolForm, *, several: bool
) -> CallGrammar | None:
    """Return the grammar of an answer whose calls are written in `form`.

    `functions` has the schema of each function's parameters by the function's name. With `several`
    an answer may have more than one call. Returns None if no grammar is written for the form.
    """
    builder = _Builder(form)
    bodies = [builder.add_function(*function) for function in functions.items()]
    if form == "llama":
        start = _UNMARKED_START.format(heads=" | ".join(builder.heads))
    elif form in ("hermes", "qwen_xml"):
        calls = "(TEXT_AND_MARK call)"
        start = _MARKED_START.format(start=f"{calls}{'*' if several else '?'} TEXT")
    else:
        return None
    rules = "\n".join([f"body: {' | '.join(bodies)}", *builder.rules])
    return CallGrammar(f"{LARK_HEADER}{start}{rules}\n", tuple(dict.fromkeys(builder.left_out)))


@dataclass(slots=True)
class _Builder:
    """Collects the rules of the functions; used by one call of `build_call_grammar`."""

    form: ToolForm
    rules: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add_function(self, name: str, parameters: Mapping[str, Any]) -> str:
        """Add the rules of a function's call, and return the rule of the whole."""
        if self.form == "qwen_xml":
            return " ".join(self._write_xml(name, parameters))
        # A schema without a type allows an array or a text too.
        arguments = self._add_json({"type": "object", **parameters})
        opening = f'{{"name": {json.dumps(name)}'
        if self.form != "llama":
            head = _quote(f'{opening}, "arguments": ')
            return f'{head} {arguments} "}}"'
        head = f"HEAD_{len(self.heads)}"
        self.heads.append(head)
        # One text with the space before it, which could be the start of any text too.
        self.rules.append(f"{head}: /\\s*/ {_quote(opening)}")
        return f'{head} ", \\"parameters\\": " {arguments} "}}"'

    def _add_json(self, schema: Mapping[str, Any]) -> str:
        held = find_held_schema(schema)
        self.left_out += held.left_out
        text = json.dumps({**held.schema, "x-guidance": SCHEMA_OPTIONS})
        return self._add_rule(f"%json {text}")

    def _add_rule(self, definition: str) -> str:
        name = f"part_{len(self.rules)}"
        self.rules.append(f"{name}: {definition}")
        return name

    def _write_xml(self, name: str, parameters: Mapping[str, Any]) -> Iterator[str]:
        """Yield the parts of a call as Qwen3-Coder writes it."""
        yield _quote(f"<function={name}>\n")
        definitions = {key: parameters[key] for key in _DEFINITIONS if key in parameters}
        parameters = _resolve(parameters, definitions)
        properties = parameters.get("properties", {})
        properties = properties if isinstance(properties, Mapping) else {}
        required = parameters.get("required", [])
        required = required if isinstance(required, list) else []
        for key, schema in properties.items():
            value = self._add_xml_value(key, _resolve(schema, definitions), definitions)
            opening = _quote(f"<parameter={key}>\n")
            yield f"({opening} {value}){'' if key in required else '?'}"
        others = parameters.get("additionalProperties", "properties" not in parameters)
        if others is not False:
            yield f"({self._add_xml_names(properties)} {self._add_xml_text()})*"
        has_more = not parameters.keys() <= _XML_KEYWORDS or not properties.keys() >= {*required}
        if has_more or not isinstance(others, bool):
            self.left_out.append(f"the schema of {name[:40]}")
        yield _quote("</function>")

    def _add_xml_names(self, properties: Mapping[str, Any]) -> str:
        """Return the name of a new rule: the tag that opens a parameter of any other name."""
        name = f"OTHER_{len(self.rules)}"
        known = " | ".join(_quote(f"<parameter={key}>\n") for key in properties)
        self.rules.append(f"{name}: /<parameter=[^<>\\n]+>\\n/{f' & ~({known})' if known else ''}")
        return name

    def _add_xml_value(
        self, key: str, schema: Mapping[str, Any], definitions: Mapping[str, Any]
    ) -> str:
        """Return the rule of a value and its end: JSON, or a text without quotes."""
        end = _quote("\n</parameter>\n")
        choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if (
            isinstance(choices, list)
            and choices
            and all(isinstance(choice, str) for choice in choices)
        ):
            return self._add_rule(f"({' | '.join(map(_quote, choices))}) {end}")
        if not _admits_text(schema, definitions):
            return f"{self._add_json({**definitions, **schema})} {end}"
        if schema.get("type") != "string" or not schema.keys() <= _FREE_TEXT:
            self.left_out.append(f"the schema of {key[:40]}")
        return self._add_xml_text()

    def _add_xml_text(self) -> str:
        """Return the rule of a text without quotes and its end."""
        text = f"TEXT_{len(self.rules)}"
        self.rules.append(f'{text}: (ANY & ~(ANY "</parameter>" ANY)) "</parameter>"')
        return f'{text} "\\n"'


def _admits_text(schema: Any, definitions: Mapping[str, Any], level: int = 0) -> bool:
    """Return whether a value of a schema may be a text; true if it is not clear."""
    schema = _resolve(schema, definitions)
    kind = schema.get("type")
    if kind is not None:
        return kind == "string" or (isinstance(kind, list) and "string" in kind)
    if isinstance(choices := schema.get("enum"), list):
        return any(isinstance(choice, str) for choice in choices)
    if "const" in schema:
        return isinstance(schema["const"], str)
    parts = schema.get("anyOf", schema.get("oneOf"))
    if not isinstance(parts, list) or level == _MAX_REFS:
        return True
    return any(_admits_text(part, definitions, level + 1) for part in parts)


def _resolve(schema: Any, definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow the `$ref` of a schema to its definition; return a schema without one as it is."""
    for _ in range(_MAX_REFS):
        if not isinstance(schema, Mapping):
            break
        _, *path = str(schema.get("$ref", "")).split("/")
        group = definitions.get(path[0]) if len(path) == 2 else None
        target = group.get(path[1]) if isinstance(group, Mapping) else None
        if not isinstance(target, Mapping):
            return schema
        schema = {**target, **{key: schema[key] for key in schema if key != "$ref"}}
    return {}


def _quote(text: str) -> str:
    """Return a text as a string of Lark, whose escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False)
