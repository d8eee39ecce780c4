"""The arguments of calls against the schemas of their functions."""

from __future__ import annotations

import pytest

from validation.options.calls import CallCheck
from validation.options.schema import SchemaCheck

CHECK = CallCheck(
    {"weather": SchemaCheck({"type": "object", "properties": {"days": {"type": "integer"}}})}
)


@pytest.mark.parametrize(
    ("call", "rules"),
    [
        ('{"name": "weather", "arguments": {"days": 3}}', []),
        ('{"name": "weather", "arguments": {"days": "3"}}', ["schema_mismatch"]),
        ('{"name": "other", "arguments": {"days": "3"}}', []),
        # Cut off by a token limit.
        ('{"name": "weather", "arguments": {"days": }', ["schema_not_json"]),
    ],
)
def test_arguments_are_checked_with_the_schema_of_their_function(
    call: str, rules: list[str]
) -> None:
    assert [issue.rule for issue in CHECK.find_issues(call)] == rules


def test_issue_names_the_function() -> None:
    [issue] = CHECK.find_issues('{"name": "weather", "arguments": {"days": "3"}}')
    assert issue.message.startswith("In the call of weather: ")
