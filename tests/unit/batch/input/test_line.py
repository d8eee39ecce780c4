"""parse_line: valid requests, and the messages for invalid ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from batch.input.line import MAX_ID_CHARS, BadLine, Line, parse_line

CALL: dict[str, Any] = {
    "custom_id": "one",
    "method": "POST",
    "url": "/v1/completions",
    "body": {"model": "m", "prompt": "x"},
}


def encoded(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def test_parse_line_reads_a_call() -> None:
    assert parse_line(encoded(CALL), 7) == Line(7, "one", "/v1/completions", CALL["body"])


@pytest.mark.parametrize(
    ("line", "custom_id"),
    [
        ({"input": {"prompt": "x"}}, "line-3"),
        ({"id": "a job", "input": {"prompt": "x"}}, "a job"),
        ({"id": None, "input": {"prompt": "x"}, "webhook": "http://x"}, "line-3"),
    ],
)
def test_parse_line_reads_a_job_input(line: dict[str, Any], custom_id: str) -> None:
    assert parse_line(encoded(line), 3) == Line(3, custom_id, None, {"prompt": "x"})


def test_parse_line_ignores_byte_order_mark_and_carriage_return() -> None:
    raw = b"\xef\xbb\xbf" + json.dumps(CALL).encode() + b"\r\n"
    assert parse_line(raw, 1).custom_id == "one"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"\n", "the line is empty"),
        (b"", "the line is empty"),
        (b" \r\n", "the line is empty"),
        (b"{\n", "the line is not JSON: "),
        (b'{"custom_id": "\xff"}\n', "the line is not JSON: "),
        (b'{"a": NaN}\n', "the line is not JSON: "),
        (b"[" * 100_000 + b"\n", "the line is not JSON: "),
        (b"[1]\n", "the line must be a JSON object, got "),
        (encoded({}), "custom_id is missing"),
        (encoded({**CALL, "method": "GET"}), 'method must be POST, got "GET"'),
        (encoded({**CALL, "url": 3}), "url must be a string, got 3"),
        (encoded({**CALL, "body": []}), "body must be a JSON object, got []"),
        (encoded({**CALL, "custom_id": ""}), "custom_id must be a string of 1 to 512 characters"),
        (encoded({**CALL, "custom_id": 1}), "custom_id must be a string of 1 to 512 characters"),
        (
            encoded({**CALL, "custom_id": "x" * (MAX_ID_CHARS + 1)}),
            "custom_id must be a string of 1 to 512 characters",
        ),
        (encoded({"input": "x"}), 'input must be a JSON object, got "x"'),
        (encoded({"id": 4, "input": {}}), "id must be a string of 1 to 512 characters, got 4"),
        *(
            (
                encoded({key: value for key, value in CALL.items() if key != name}),
                f"{name} is missing",
            )
            for name in CALL
        ),
    ],
)
def test_parse_line_rejects_invalid_lines_with_one_sentence(raw: bytes, message: str) -> None:
    with pytest.raises(BadLine) as caught:
        parse_line(raw, 2)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_parse_line_rejects_a_byte_order_mark_on_a_later_line() -> None:
    with pytest.raises(BadLine, match="not JSON"):
        parse_line(b"\xef\xbb\xbf" + encoded(CALL), 2)


@pytest.mark.parametrize(
    ("line", "warnings"),
    [
        (
            {"input": {"prompt": "x"}, "id": "1", "temperature": 0.5},
            ("temperature was ignored: put it in input.sampling_params",),
        ),
        (
            {
                "custom_id": "1",
                "method": "POST",
                "url": "/v1/completions",
                "body": {},
                "model": "m",
            },
            ("model was ignored: put it in body",),
        ),
        (
            {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {}, "bdy": {}},
            ("bdy is unknown and was ignored: did you mean body?",),
        ),
        ({"input": {}, "id": "1", "note": "mine"}, ()),
    ],
)
def test_parse_line_warns_about_other_keys(
    line: dict[str, object], warnings: tuple[str, ...]
) -> None:  # R61
    assert parse_line(json.dumps(line).encode(), 1).warnings == warnings
