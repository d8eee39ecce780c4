"""Print a local job on a terminal."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from handler.worker.terminal import TerminalReport, format_json, summarize

TIMINGS = {"queue_ms": 100.0, "load_ms": 900.0, "total_ms": 2400.0}


def output(text: str, *deltas: str, **keys: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "deltas": [*deltas], "tokens": [*deltas]}
    validation = {
        "valid": True,
        "issues": [],
        "intent": "general",
        "details": {"issues": [], "notices": []},
    }
    usage = {"input": 3, "output": 87}
    return {
        "choices": [choice],
        "usage": usage,
        "validation": validation,
        "timings": TIMINGS,
    } | keys


def partial(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "tokens": [text]}], "streaming": True}


def printed(final: Any, *added: Any) -> tuple[str, str]:
    out, errors = io.StringIO(), io.StringIO()
    report = TerminalReport(out, errors)
    for each in added:
        report.add(each)
    report.end(final)
    return out.getvalue(), errors.getvalue()


def test_report_is_text_then_verdict_then_json() -> None:
    final = output("Hello you", "Hello", " you")
    text, _, rest = printed(final, partial("Hello"), partial(" you"), final)[0].partition("\n\n")
    verdict, _, json_text = rest.partition("\n\n")
    assert text == "Hello you"
    assert verdict == "valid \u00b7 intent general \u00b7 87 tokens in 1.4 s"
    assert json.loads(json_text) == final
    assert '      "deltas": ["Hello", " you"],\n' in json_text


def test_text_is_printed_as_it_comes() -> None:
    out = io.StringIO()
    report = TerminalReport(out, io.StringIO())
    report.add(partial("Hello"))
    assert out.getvalue() == "Hello"


def test_text_of_a_job_without_stream_is_printed_once() -> None:
    final = output("Hello")
    assert printed(final, final)[0].startswith("Hello\n\nvalid ")


def test_sanitized_text_is_printed_after_the_stream() -> None:
    out, _ = printed(output("Hello"), partial("Assistant: Hello"))
    assert out.startswith("Assistant: Hello\n\nAfter sanitising:\nHello\n\nvalid ")


def test_failed_job_prints_only_its_error() -> None:
    assert printed({"error": "no NPU"}) == ("", "no NPU\n")


def test_summary_of_an_invalid_answer_names_the_reasons_and_the_notices() -> None:
    validation = {
        "valid": False,
        "issues": ["It is short.", "It is odd."],
        "intent": "general",
        "details": {"notices": [{"rule": "cut_off", "message": "It was cut off."}]},
    }
    line = summarize(output("a", validation=validation, usage={"output": 1}))
    assert line == (
        "not valid: It is short. It is odd. \u00b7 intent general \u00b7 1 token in 1.4 s \u00b7 "
        "notice: It was cut off."
    )


def test_summary_without_validation_is_tokens_and_time() -> None:
    final = output("a")
    del final["validation"]
    assert summarize(final) == "87 tokens in 1.4 s"


@pytest.mark.parametrize(
    "value", [{}, [], "a", None, {"a": [1, 2]}, [{"a": {"b": []}}, []], {"\u00fc": ["\x1b"]}]
)
def test_layout_is_json(value: Any) -> None:
    assert json.loads(format_json(value)) == value


def test_format_json_keeps_plain_arrays_on_one_line() -> None:
    assert format_json({"a": {"b": ["x", 1]}}) == '{\n  "a": {\n    "b": ["x", 1]\n  }\n}'


def test_format_json_escapes_controls_that_json_does_not() -> None:
    hostile = "a\x9b2J\x7f\u202eb"
    line = format_json({"text": hostile})
    assert line == '{\n  "text": "a\\u009b2J\\u007f\\u202eb"\n}'
    assert json.loads(line) == {"text": hostile}
