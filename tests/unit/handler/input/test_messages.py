"""Parse chat messages: roles, content, and error messages."""

from __future__ import annotations

from typing import Any

import pytest

from engine import Message
from handler.errors import InvalidRequest
from handler.input.messages import read_messages
from handler.input.text import check_text

ROLES = "developer, system, user, assistant, tool, function"
PART = '{"type": "text", "text": …}'
HALF = "must be Unicode text, got half a surrogate pair at character"


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


REFUSED: list[tuple[Any, str, str]] = [
    # R34
    ([], "messages", "messages must be a non-empty array, got []"),
    (None, "messages", "messages must be a non-empty array, got null"),
    ("hi", "messages", 'messages must be a non-empty array, got "hi"'),
    ({"role": "user"}, "messages", 'messages must be a non-empty array, got {"role":"user"}'),
    ([5], "messages[0]", "messages[0] must be an object, got 5"),
    (
        [*user("hi"), {"role": "robot", "content": "x"}],
        "messages[1].role",
        f'messages[1].role must be one of {ROLES}, got "robot"',
    ),
    ([{"content": "x"}], "messages[0].role", f"messages[0].role must be one of {ROLES}, got null"),
    (
        [{"role": ["user"], "content": "x"}],
        "messages[0].role",
        f'messages[0].role must be one of {ROLES}, got ["user"]',
    ),
    (
        [{"role": "User", "content": "x"}],
        "messages[0].role",
        f'messages[0].role must be one of {ROLES}, got "User"',
    ),
    (
        [{"role": "user"}],
        "messages[0].content",
        "messages[0].content must be a string or an array of text parts, got null",
    ),
    (
        user(5),
        "messages[0].content",
        "messages[0].content must be a string or an array of text parts, got 5",
    ),
    (
        user([{"type": "text", "text": "ok"}, {"type": "image_url", "image_url": "x"}]),
        "messages[0].content[1].image_url",
        "messages[0].content[1].image_url must be a data URL such as data:image/png;base64,…, "
        'got "x"',
    ),
    (
        user([{"type": "text"}]),
        "messages[0].content[0]",
        f'messages[0].content[0] must be {PART}, got {{"type":"text"}}',
    ),
    (user(["hi"]), "messages[0].content[0]", f'messages[0].content[0] must be {PART}, got "hi"'),
    (user("a\ud800"), "messages[0].content", f"messages[0].content {HALF} 1"),
    (
        user([{"type": "text", "text": "\udfff"}]),
        "messages[0].content[0]",
        f"messages[0].content[0] {HALF} 0",
    ),
    (
        [{"role": "user", "content": "x", "name": 5}],
        "messages[0].name",
        "messages[0].name must be a string, got 5",
    ),
    (
        [{"role": "user", "content": "x", "name": "\ud800"}],
        "messages[0].name",
        f"messages[0].name {HALF} 0",
    ),
]


@pytest.mark.parametrize(("raw", "param", "message"), REFUSED)
@pytest.mark.parametrize("path", ["", "input."])
def test_refused_in_one_sentence(raw: Any, param: str, message: str, path: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read_messages(raw, path)
    assert raised.value.message == f"{path}{message}"
    assert raised.value.param == f"{path}{param}"


@pytest.mark.parametrize(
    ("role", "becomes"),
    [
        ("developer", "system"),
        ("system", "system"),
        ("user", "user"),
        ("assistant", "assistant"),
        ("tool", "tool"),
        ("function", "tool"),
    ],
)
def test_every_role_of_openai_is_taken(role: str, becomes: str) -> None:
    # R34
    assert read_messages([{"role": role, "content": "x"}]).messages == (Message(becomes, "x"),)


def test_text_parts_are_lines_in_order() -> None:
    # R34; as in vLLM.
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert read_messages(user(parts)).messages == (Message("user", "one\ntwo"),)
    assert read_messages(user([])).messages == (Message("user", ""),)


def test_only_the_assistant_may_have_no_content() -> None:
    turns = [{"role": "assistant", "content": None, "tool_calls": []}, *user("hi")]
    assert read_messages(turns).messages[0] == Message("assistant", "")


def test_order_name_and_content_are_kept() -> None:
    turns = [{"role": "system", "content": "be brief"}, {**user("hé 😀")[0], "name": "ann"}]
    assert read_messages(turns).messages == (
        Message("system", "be brief"),
        Message("user", "hé 😀", "ann"),
    )


def test_complete_surrogate_pairs_are_text() -> None:
    check_text("\N{GRINNING FACE} é \0", "x")
