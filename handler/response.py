"""Encode an answer as the JSON output of a job."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from engine import Delta, Timings
from handler.generation.completed_answer import CompletedAnswer

# The maximum number of removals in an output: a text may have one every few characters.
MAX_REMOVALS = 100
_TIMINGS_DIGITS = 3


def encode_answer(answer: CompletedAnswer) -> dict[str, Any]:
    """Return a job's output; plain JSON values, every number finite.

    `reasoning` is present only if the model reasoned. `deltas` is present only if the job asked to
    stream, and `tokens` is the same list; otherwise `tokens` has the complete text. `validation` is
    present only if the answer was validated; `blocked`, `redacted` and `regenerated` only if that
    happened.
    """
    finish = answer.finish
    choice: dict[str, Any] = {"index": 0, "text": answer.text}
    if answer.reply.reasoning:
        choice["reasoning"] = answer.reply.reasoning
    if answer.streaming:
        deltas = list(answer.deltas)
        choice |= {"deltas": deltas, "tokens": deltas}
    else:
        choice["tokens"] = [answer.text]
    choice["finish_reason"] = finish.reason.value
    if finish.stop_reason is not None:
        choice["stop_reason"] = finish.stop_reason
    usage = finish.usage
    output: dict[str, Any] = {
        "choices": [choice],
        "usage": {
            "input": usage.prompt_tokens,
            "output": usage.completion_tokens,
            "total": usage.total_tokens,
        },
    }
    if reasoning_tokens := answer.reasoning_tokens:
        output["usage"]["reasoning"] = reasoning_tokens
    output |= encode_verdict(answer)
    output |= {
        "streaming": answer.streaming,
        "id": answer.id,
        "model": answer.model,
        "timings": dict(zip(Timings._fields, map(_round_finite, finish.timings), strict=True)),
    }
    if answer.warnings:
        output["warnings"] = list(answer.warnings)
    return output


def encode_verdict(answer: CompletedAnswer) -> dict[str, Any]:
    """Return the keys about validation, the same in every dialect; empty without validation.

    Issues and notices both have `rule` and `message`. Spans count characters of the model's raw
    text after redaction.
    """
    fields: dict[str, Any] = {}
    if (verdict := answer.verdict) is not None:
        removals = verdict.removals
        fields["validation"] = {
            "valid": verdict.valid,
            "issues": [issue.message for issue in verdict.issues],
            "sanitized": answer.sanitized,
            "intent": verdict.intent,
            "details": {
                "issues": [asdict(issue) for issue in verdict.issues],
                "notices": [asdict(notice) for notice in verdict.notices],
                "removed": [
                    {"rule": removal.rule, "span": [removal.start, removal.end]}
                    for removal in removals[:MAX_REMOVALS]
                ],
                "removed_count": len(removals),
            },
        }
    if answer.blocked:
        fields["blocked"] = True
    if answer.redacted:
        fields["redacted"] = dict(answer.redacted)
    if (discarded := answer.discarded) is not None:
        issues = discarded.verdict.issues if discarded.verdict is not None else ()
        usage = discarded.finish.usage
        fields["regenerated"] = {
            "discarded_issues": [issue.message for issue in issues],
            "discarded_usage": {"input": usage.prompt_tokens, "output": usage.completion_tokens},
        }
    return fields


def encode_partial(batch: list[Delta]) -> dict[str, Any]:
    """Return the new text of a batch as one partial output for RunPod's `/stream`."""
    texts = [delta.text for delta in batch if delta.text]
    return {"choices": [{"index": 0, "text": "".join(texts), "tokens": texts}], "streaming": True}


def _round_finite(value: float) -> float:
    # The SDK would encode NaN and Infinity literally, which is not valid JSON.
    return round(value, _TIMINGS_DIGITS) if math.isfinite(value) else 0.0
