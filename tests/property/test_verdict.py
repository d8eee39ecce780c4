"""The verdict for any output of the model (R46, R47)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine import Finish, FinishReason, Usage
from engine.reply.reply import Reply
from handler.generation.completed_answer import CompletedAnswer
from handler.response import encode_answer
from validation import NO_OPTIONS, Options, Subject, Verdict
from validation.options.blocked import Blocklist
from validation.options.pii import PiiRedactor
from validation.options.schema import SchemaCheck
from validation.rules_validator import RulesValidator

_V3 = RulesValidator.from_file()
_SCHEMA = Options(checks={"json_schema": SchemaCheck({"type": "object"})})
_PIECES = st.sampled_from(
    [
        "Assistant: ",
        "<|im_end|>",
        "[INST]",
        "Sure! Here is the answer:\n",
        "The salary is 50,000 a year. ",
        "the same again, ",
        "!!!!!!!",
        "\n\n\n\n\n\n\n",
        "<p>Paris</p>",
        "```\n<|im_start|>\n```\n",
        " |",
        "I hope this helps!",
        "a@example.org",
        "\ud83d",
    ]
)
TEXTS = st.text(max_size=200) | st.lists(_PIECES | st.text(max_size=10), max_size=30).map("".join)
PROMPTS = st.sampled_from(
    ["", "How much does a nurse earn in London?", "What is the capital of France?"]
) | st.text(max_size=100)


@given(prompt=PROMPTS, text=TEXTS, reason=st.sampled_from(["stop", "length"]), strict=st.booleans())
def test_valid_exactly_when_there_is_no_issue(
    prompt: str, text: str, reason: str, strict: bool
) -> None:
    # R47
    subject = Subject(prompt=prompt, text=text, finish_reason=reason, system="You are a bot.")
    verdict = _V3.validate(subject, _SCHEMA if strict else NO_OPTIONS)
    assert verdict.valid == (not verdict.issues)
    assert all(issue.rule and issue.message.strip() for issue in verdict.issues)
    assert verdict.intent in _V3.intents
    assert bool(verdict.removals) == (verdict.text != text)
    second_verdict = _V3.validate(
        Subject(prompt=prompt, text=verdict.text, finish_reason=reason, system="You are a bot."),
        NO_OPTIONS,
    )
    assert second_verdict.text == verdict.text


@given(deltas=st.lists(TEXTS.filter(bool), max_size=5), prompt=PROMPTS, streaming=st.booleans())
def test_validation_in_the_job_json_agrees_with_the_output(
    deltas: list[str], prompt: str, streaming: bool
) -> None:
    # R46, R47
    raw = "".join(deltas)
    verdict = _V3.validate(Subject(prompt=prompt, text=raw), NO_OPTIONS)
    output = encode_answer(_answer(tuple(deltas), verdict, streaming=streaming))
    choice, validation = output["choices"][0], output["validation"]
    assert validation["sanitized"] == (choice["text"] != raw)
    assert validation["valid"] == (validation["issues"] == [])
    assert len(validation["details"]["issues"]) == len(validation["issues"])
    if streaming:
        assert "".join(choice["deltas"]) == raw
        assert choice["tokens"] == choice["deltas"]
    else:
        assert choice["tokens"] == [choice["text"]]
    for removed in validation["details"]["removed"]:
        start, end = removed["span"]
        assert 0 <= start <= end <= len(raw)


@given(text=TEXTS)
def test_refused_request_is_never_valid(text: str) -> None:
    # R56
    options = Options(blockers=(Blocklist(["salary"]),))
    verdict = _V3.check_request(text, text, options)
    if "salary" in text:
        assert verdict is not None
    if verdict is not None:
        assert (verdict.text, verdict.valid) == ("", False)


@given(text=TEXTS)
def test_redaction_and_sanitising_go_together(text: str) -> None:
    redacted, _ = PiiRedactor().redact(text)
    verdict = _V3.validate(Subject(prompt="", text=redacted), NO_OPTIONS)
    assert verdict.valid == (not verdict.issues)


def _answer(deltas: tuple[str, ...], verdict: Verdict, *, streaming: bool) -> CompletedAnswer:
    return CompletedAnswer(
        id="x",
        model="m",
        created=0,
        text=verdict.text,
        reply=Reply(text="".join(deltas)),
        deltas=deltas,
        finish=Finish(reason=FinishReason.STOP, usage=Usage(1, len(deltas))),
        streaming=streaming,
        verdict=verdict,
    )
