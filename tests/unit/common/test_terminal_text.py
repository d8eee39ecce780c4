"""Escape untrusted text for terminals and logs."""

from __future__ import annotations

import json

import orjson
import pytest

from common.terminal_text import escape_controls, escape_json, escape_lines, replace_controls

HOSTILE = [
    "\x1b[2J",
    "\x9b2J",
    "\r",
    "\b",
    "\x00",
    "\x7f",
    "\u202e",
    "\u2066",
    "\u2028",
    "\U000e0041",
]


@pytest.mark.parametrize("text", ["", "plain", "naïve 日本語 ✓"])
def test_printable_text_is_unchanged(text: str) -> None:
    assert escape_controls(text) == escape_lines(text) == replace_controls(text) == text
    assert escape_json(orjson.dumps(text).decode()) == orjson.dumps(text).decode()


@pytest.mark.parametrize("hostile", [*HOSTILE, "\n", "\t", "\ud800"])
def test_escape_controls_returns_one_printable_line(hostile: str) -> None:
    assert escape_controls(f"a{hostile}b").isprintable()


def test_escape_controls_writes_codes_as_python_does() -> None:
    assert escape_controls("a\n\x1b[2J\x9b\u202e") == "a\\n\\x1b[2J\\x9b\\u202e"


@pytest.mark.parametrize("hostile", HOSTILE)
def test_escape_lines_keeps_only_line_feeds_and_tabs(hostile: str) -> None:
    escaped = escape_lines(f"one{hostile}\n\ttwo")
    first, second = escaped.split("\n")
    assert first.isprintable()
    assert second == "\ttwo"


@pytest.mark.parametrize("hostile", HOSTILE)
def test_replace_controls_leaves_a_sign_where_one_was(hostile: str) -> None:
    replaced = replace_controls(f"a{hostile}b\n\tc")
    assert "\ufffd" in replaced
    assert replaced.replace("\n", "").replace("\t", "").isprintable()


def test_replace_controls_keeps_the_invisible_characters_of_scripts_and_emoji() -> None:
    text = "10\u00a0km, \u0646\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645, 👩\u200d🔧"
    assert replace_controls(text) == text


@pytest.mark.parametrize("hostile", [*HOSTILE, "\n", "\t", '"', "\\"])
@pytest.mark.parametrize("encode", [lambda value: orjson.dumps(value).decode(), json.dumps])
def test_escape_json_changes_no_value(hostile: str, encode: type[str]) -> None:
    value = {f"a{hostile}": [f"{hostile}b"]}
    escaped = escape_json(encode(value))
    assert escaped.isprintable()
    assert json.loads(escaped) == value


def test_escape_json_takes_half_a_surrogate_pair() -> None:
    assert json.loads(escape_json('"\ud800"')) == "\ud800"
