"""`tools` and `tool_choice` of a response."""

from __future__ import annotations

from typing import Any

import pytest

from handler.apis.responses.tools import read_tools
from handler.errors import InvalidRequest

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "weather", "parameters": {"type": "object"}},
    {"type": "function", "name": "time", "parameters": {"type": "object"}},
    {"type": "custom", "name": "patch"},
    {"type": "web_search"},
]


def allow(mode: str | None, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "name": name} for name in names]
    return {"type": "allowed_tools", "mode": mode, "tools": tools}


@pytest.mark.parametrize(
    ("choice", "offered", "must_call"),
    [
        (None, ["weather", "time", "patch"], False),
        ("required", ["weather", "time", "patch"], True),
        (allow("auto", "time"), ["time"], False),
        (allow("required", "time", "patch"), ["time", "patch"], True),
        # A tool that was skipped.
        (allow("auto", "time", "web_search"), ["time"], False),
        ("none", [], False),
    ],
)
def test_tool_choice_selects_the_offered_tools(
    choice: Any, offered: list[str], must_call: bool
) -> None:
    tools = read_tools({"tools": TOOLS, "tool_choice": choice}).tools
    assert [tool["function"]["name"] for tool in tools.definitions] == offered
    assert (tools.constraint is not None) == must_call


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "allowed_tools", "mode": "auto"}, "tool_choice.tools"),
        ({"type": "allowed_tools", "mode": "auto", "tools": ["time"]}, "tool_choice.tools"),
        (allow("some", "time"), "tool_choice"),
        (allow("required"), "tool_choice"),
        ({"type": "function", "name": "other"}, "tool_choice"),
    ],
)
def test_wrong_choice_is_refused(choice: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_tools({"tools": TOOLS, "tool_choice": choice})
    assert refused.value.param == param
