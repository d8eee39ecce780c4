from __future__ import annotations

from typing import Any

import pytest

from engine.schema.grammar_cost import resolve_ref
from handler.apis.core.schema_refs import move_refs
from handler.apis.openai.tools import read_tools

PATH = "#/properties/arguments"


@pytest.mark.parametrize(
    ("schema", "moved"),
    [
        ({"$ref": "#/$defs/a"}, {"$ref": f"{PATH}/$defs/a"}),
        ({"$ref": "#"}, {"$ref": PATH}),
        ({"$ref": "#/definitions/a~1b"}, {"$ref": f"{PATH}/definitions/a~1b"}),
        ({"$ref": "#anchor"}, {"$ref": "#anchor"}),
        ({"$ref": "https://example.com/x"}, {"$ref": "https://example.com/x"}),
        ({"items": {"$ref": "#"}}, {"items": {"$ref": PATH}}),
        ({"anyOf": [{"$ref": "#"}, True]}, {"anyOf": [{"$ref": PATH}, True]}),
        # A property of this name, and data that only resembles a reference.
        (
            {"properties": {"$ref": {"type": "string"}, "const": {"$ref": "#"}}},
            {"properties": {"$ref": {"type": "string"}, "const": {"$ref": PATH}}},
        ),
        ({"const": {"$ref": "#"}}, {"const": {"$ref": "#"}}),
        ({"enum": [{"$ref": "#"}]}, {"enum": [{"$ref": "#"}]}),
        ({"default": {"$ref": "#/x"}}, {"default": {"$ref": "#/x"}}),
    ],
)
def test_references_begin_with_the_new_place(schema: dict[str, Any], moved: dict[str, Any]) -> None:
    assert move_refs(schema, PATH) == moved


NESTED = {
    "type": "object",
    "properties": {"home": {"$ref": "#/$defs/Address"}, "next": {"$ref": "#"}},
    "$defs": {"Address": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.mark.parametrize("names", [("a",), ("a", "b", "c")])
def test_references_of_forced_calls_lead_to_the_same_parts(names: tuple[str, ...]) -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": NESTED}} for name in names
    ]
    constraint = read_tools({"tools": tools, "tool_choice": "required"}).constraint
    assert constraint is not None
    schema = constraint.json_schema
    assert schema is not None
    calls = schema.get("anyOf", [schema])
    assert len(calls) == len(names)
    for call in calls:
        arguments = call["properties"]["arguments"]
        address = resolve_ref(schema, arguments["properties"]["home"]["$ref"])
        assert address == arguments["$defs"]["Address"]
        assert resolve_ref(schema, arguments["properties"]["next"]["$ref"]) == arguments
