"""Choose the model for a name that is not served."""

from __future__ import annotations

import pytest

from handler.models.model_name_map import CLAUDE_TO_DEFAULT, find_served_name, parse_name_map

SERVED = ("tiny", "large", "gpt-4")


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("claude-haiku-4-5", "tiny"),
        ("claude-sonnet-4-5", "large"),
        ("gpt-5", "tiny"),
        ("gpt-4", "gpt-4"),
        ("other", "other"),
    ],
)
def test_first_pair_that_matches_counts(name: str, model: str) -> None:
    names = parse_name_map("claude-haiku-*=tiny, claude-*=large,gpt-*=tiny,")
    assert names.find(name, SERVED) == model
    assert names.models == ("tiny", "large", "tiny")


def test_default_model_answers_to_names_of_claude() -> None:
    assert CLAUDE_TO_DEFAULT.find("claude-opus-4-1", SERVED) is None
    assert CLAUDE_TO_DEFAULT.find("gpt-5", SERVED) == "gpt-5"
    assert CLAUDE_TO_DEFAULT.models == ()


@pytest.mark.parametrize("setting", ["claude-*", "=tiny", "claude-*="])
def test_incomplete_pairs_are_refused(setting: str) -> None:
    with pytest.raises(ValueError, match="must be pairs such as"):
        parse_name_map(setting)


@pytest.mark.parametrize(
    ("name", "served", "expected"),
    [
        ("a", ["a"], "a"),
        ("a:latest", ["a"], "a"),
        ("a:latest", ["a", "a:latest"], "a:latest"),
        ("a", ["a:latest"], None),
        ("a:7b", ["a"], None),
        (":latest", ["a"], None),
    ],
)
def test_latest_is_a_name_without_a_tag(name: str, served: list[str], expected: str | None) -> None:
    assert find_served_name(name, served) == expected


def test_latest_of_a_served_name_is_not_replaced() -> None:
    assert CLAUDE_TO_DEFAULT.find("claude:latest", ["claude"]) == "claude:latest"
