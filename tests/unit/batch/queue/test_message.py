from __future__ import annotations

import json

import pytest

from batch.input.line import parse_line
from batch.queue.message import (
    encode_message,
    failure_line,
    is_success_line,
    parse_message,
    result_key,
    validate_batch_name,
)
from tests.integration.batch.runs import call


def encode(line: dict[str, object], number: int = 3) -> bytes:
    raw = json.dumps(line).encode()
    return encode_message("b", raw, parse_line(raw, number))


def test_parse_message_returns_the_encoded_line() -> None:
    line = call("an id", "a prompt")
    message = parse_message(encode(line), "model")
    assert message.line is not None
    assert (message.line.custom_id, message.line.route) == ("an id", "/v1/completions")
    assert message.line.body == line["body"]
    assert message.key == result_key("b", "an id")
    assert message.problem == ""


def test_job_without_an_id_is_named_by_its_line_number() -> None:
    message = parse_message(encode({"input": {"prompt": "x"}}), "model")
    assert message.custom_id == "line-3"
    assert message.key == result_key("b", "line-3")


def test_encode_message_drops_a_byte_order_mark() -> None:
    raw = b"\xef\xbb\xbf" + json.dumps(call("a")).encode()
    assert json.loads(encode_message("b", raw, parse_line(raw, 1)))["custom_id"] == "a"


def test_result_key_depends_on_batch_and_id_only() -> None:
    one, two = call("a", "one"), call("a", "two")
    assert parse_message(encode(one), "x").key == parse_message(encode(two), "y").key
    assert result_key("b", "a") != result_key("c", "a")
    assert result_key("b", "a" * 512).startswith("b/results/")
    assert len(result_key("b" * 64, "\ud800" * 512)) < 1024


def test_result_key_without_a_batch_depends_on_content_and_model() -> None:
    def key(line: dict[str, object], model: str = "m") -> str:
        return parse_message(json.dumps(line).encode(), model).key

    line, same = call("a"), dict(reversed(call("a").items()))
    assert key(line) == key(same)
    assert key(line).startswith("loose/")
    assert len({key(line), key(call("b")), key(call("a", "other")), key(line, "n")}) == 4
    job = parse_message(b'{"input": {"prompt": "x"}}', "m")
    assert job.line is not None
    assert job.key == f"loose/{job.custom_id}.json"


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "the line is empty"),
        (b"no json", "the line is not JSON"),
        (b"[1]", "the line must be a JSON object"),
        (b'{"custom_id": "a"}', "method is missing"),
        (b'{"batch": "../x", "custom_id": "a"}', "batch must be a name"),
        (b'{"batch": 1, "custom_id": "a"}', "batch must be a name"),
    ],
)
def test_invalid_message_has_a_key_for_its_error(raw: bytes, problem: str) -> None:
    message = parse_message(raw, "model")
    assert message.line is None
    assert problem in message.problem
    assert message.key.startswith("loose/")
    assert message == parse_message(raw, "model")
    line = failure_line(message, "bad_line", message.problem)
    assert json.loads(line)["error"]["message"] == message.problem
    assert not is_success_line(line)


def test_is_success_line_accepts_only_successful_answers() -> None:
    job = parse_message(encode({"id": "a", "input": {"prompt": "x"}}), "m")
    failed = failure_line(job, "not_answered", "no")
    assert json.loads(failed) == {"id": "a", "status": "FAILED", "error": "no"}
    assert not is_success_line(failed)
    assert is_success_line(b'{"id": "a", "status": "COMPLETED", "output": {}}')
    for status, ok in ((200, True), (500, False)):
        assert is_success_line(json.dumps({"response": {"status_code": status}}).encode()) == ok


@pytest.mark.parametrize("name", ["", "a/b", "..", ".a", "a" * 65, "ü", None, 1])
def test_validate_batch_name_rejects_names_that_are_unsafe_in_keys(name: object) -> None:
    with pytest.raises(ValueError, match="batch must be a name of 1 to 64 letters"):
        validate_batch_name(name)
    assert validate_batch_name("2026-11.a_b") == "2026-11.a_b"
