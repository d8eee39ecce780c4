"""Encode an answer as the JSON output of a job."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine import Delta, Finish, FinishReason, Timings, TokenLogprob, Usage
from engine.reply.reply import Reply
from handler.generation.completed_answer import CompletedAnswer
from handler.response import encode_answer, encode_partial, encode_verdict
from validation import Issue, Removal, Verdict

FINISH = Finish(reason=FinishReason.STOP, usage=Usage(12, 3))


def answer(*deltas: str, text: str | None = None, **fields: Any) -> CompletedAnswer:
    return CompletedAnswer(
        **{
            "id": "job-1",
            "model": "tiny",
            "created": 1,
            "reply": Reply(text="".join(deltas)),
            "text": "".join(deltas) if text is None else text,
            "deltas": deltas,
            "finish": FINISH,
            "streaming": False,
            **fields,
        }
    )


def test_complete_answer_has_one_token_with_its_text() -> None:
    # R45, R46: no deltas, the tokens are the one text.
    output = encode_answer(answer("Hello", " world"))
    assert output["choices"] == [
        {"index": 0, "text": "Hello world", "tokens": ["Hello world"], "finish_reason": "stop"}
    ]
    assert output["usage"] == {"input": 12, "output": 3, "total": 15}
    assert output["streaming"] is False
    assert output["id"] == "job-1"
    assert output["model"] == "tiny"
    assert "validation" not in output
    assert "warnings" not in output


def test_streamed_answer() -> None:
    # R45, R46: only new text in each delta.
    output = encode_answer(answer("Hello", " world", streaming=True))
    assert output["choices"] == [
        {
            "index": 0,
            "text": "Hello world",
            "deltas": ["Hello", " world"],
            "tokens": ["Hello", " world"],
            "finish_reason": "stop",
        }
    ]
    assert output["streaming"] is True


def test_answer_without_a_word() -> None:
    assert encode_answer(answer())["choices"][0]["tokens"] == [""]
    streamed = encode_answer(answer(streaming=True))["choices"][0]
    assert (streamed["text"], streamed["deltas"], streamed["tokens"]) == ("", [], [])


def test_finish_and_stop_reason() -> None:
    finish = Finish(reason=FinishReason.LENGTH, usage=Usage(1, 1))
    choice = encode_answer(answer("a", finish=finish))["choices"][0]
    assert choice["finish_reason"] == "length"
    assert "stop_reason" not in choice
    stopped = Finish(reason=FinishReason.STOP, usage=Usage(1, 1), stop_reason="five")
    assert encode_answer(answer("a", finish=stopped))["choices"][0]["stop_reason"] == "five"


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(("text", "sanitized"), [("clean", True), ("raw text", False)])
def test_validation_key_has_the_verdict(streaming: bool, text: str, sanitized: bool) -> None:
    # R45, R47: sanitized exactly when the text is not the joined deltas.
    issues = (Issue("too_short", "too short"), Issue("skills", "no skills"))
    removals = (Removal("label", 0, 4),) * 120
    verdict = Verdict(text=text, intent="general", issues=issues, removals=removals)
    output = encode_answer(answer("raw", " text", text=text, streaming=streaming, verdict=verdict))
    assert output["validation"] == {
        "valid": False,
        "issues": ["too short", "no skills"],
        "sanitized": sanitized,
        "intent": "general",
        "details": {
            "issues": [
                {"rule": "too_short", "message": "too short"},
                {"rule": "skills", "message": "no skills"},
            ],
            "notices": [],
            "removed": [{"rule": "label", "span": [0, 4]}] * 100,
            "removed_count": 120,
        },
    }
    choice = output["choices"][0]
    assert choice["text"] == text
    assert choice["tokens"] == (["raw", " text"] if streaming else [text])


def test_validation_of_a_valid_answer() -> None:
    # R47
    verdict = Verdict(text="a", intent="career_guidance")
    output = encode_answer(answer("a", verdict=verdict))
    assert output["validation"] == {
        "valid": True,
        "issues": [],
        "sanitized": False,
        "intent": "career_guidance",
        "details": {"issues": [], "notices": [], "removed": [], "removed_count": 0},
    }


def test_notices_are_details_of_a_valid_answer() -> None:
    # R60
    notices = (Issue("cut_off", "cut off"),)
    verdict = Verdict(text="a", intent="general", notices=notices)
    validation = encode_answer(answer("a", verdict=verdict))["validation"]
    assert (validation["valid"], validation["issues"]) == (True, [])
    assert validation["details"]["issues"] == []
    assert validation["details"]["notices"] == [{"rule": "cut_off", "message": "cut off"}]


def test_keys_of_absent_events_are_omitted() -> None:
    verdict = Verdict(text="a", intent="general")
    assert encode_verdict(answer("a")) == {}
    assert encode_verdict(answer("a", verdict=verdict)).keys() == {"validation"}


def test_blocked_key_with_and_without_a_verdict() -> None:
    # R56
    finish = Finish(reason=FinishReason.CONTENT_FILTER, usage=Usage(0, 0))
    verdict = Verdict(text="", intent="general", issues=(Issue("blocked_term", "no"),))
    assert encode_verdict(answer(finish=finish)) == {"blocked": True}
    encoded = encode_verdict(answer(verdict=verdict, finish=finish))
    assert encoded.keys() == {"validation", "blocked"}
    assert encoded["validation"]["issues"] == ["no"]


def test_redacted_is_counted_by_kind() -> None:
    assert encode_verdict(answer("[card]", redacted={"card": 1})) == {"redacted": {"card": 1}}


def test_regenerated_key_describes_the_discarded_answer() -> None:
    verdict = Verdict(text="b", intent="general", issues=(Issue("short", "too short"),))
    discarded = answer("b", verdict=verdict)
    assert encode_verdict(answer("a", discarded=discarded)) == {
        "regenerated": {
            "discarded_issues": ["too short"],
            "discarded_usage": {"input": 12, "output": 3},
        }
    }


def test_warnings_are_sentences() -> None:
    # R16
    assert encode_answer(answer("a", warnings=("one", "two")))["warnings"] == ["one", "two"]


@given(st.lists(st.text(min_size=1)), st.booleans())
def test_deltas_join_to_the_raw_text(deltas: list[str], streaming: bool) -> None:
    # R46
    choice = encode_answer(answer(*deltas, streaming=streaming))["choices"][0]
    assert "".join(choice["tokens"]) == "".join(deltas) == choice["text"]
    assert ("deltas" in choice) is streaming
    if streaming:
        assert choice["deltas"] == deltas


NUMBERS = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, 0.0])


@example((0.12345678,) * 6)
@given(st.tuples(*[NUMBERS] * 6))
def test_every_number_is_json(numbers: tuple[float, ...]) -> None:
    names = [
        "queue_ms",
        "prefill_ms",
        "first_token_ms",
        "generate_ms",
        "total_ms",
        "tokens_per_second",
    ]
    values: dict[str, Any] = dict(zip(names, numbers, strict=True))
    timings = Timings(**values)
    finish = Finish(reason=FinishReason.STOP, usage=Usage(1, 1), timings=timings)
    output = encode_answer(answer("a", finish=finish))
    json.dumps(output, allow_nan=False)
    for name, number in zip(names, numbers, strict=True):
        assert output["timings"][name] == (round(number, 3) if math.isfinite(number) else 0.0)


def test_partial_output_holds_new_text_only() -> None:
    # R46
    batch = [Delta("He"), Delta("", TokenLogprob("x", -1.0)), Delta("llo")]
    assert encode_partial(batch) == {
        "choices": [{"index": 0, "text": "Hello", "tokens": ["He", "llo"]}],
        "streaming": True,
    }
