"""How several streamed choices end, in whatever order they do: R5, R16, R21, R22."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from openai.types import CompletionUsage

from engine import Finish, FinishReason, Usage
from engine.reply.reply import Reply
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.completions import COMPLETIONS
from handler.apis.openai.wire_format import DONE
from handler.generation.completed_answer import CompletedAnswer
from tests.unit.handler.apis.openai import reading
from tests.usage import usage

# One prompt answered four times, all but the first time out of the cache.
USAGES = [Usage(10, 1, 4), Usage(10, 2, 9), Usage(10, 4, 9), Usage(10, 8, 9)]
TOTAL = usage(10, 15, cached=4)
OPTIONS: list[dict[str, Any] | None] = [None, {"include_usage": True}, {"include_usage": False}]


def create_call(options: dict[str, Any] | None = None) -> OpenAICall:
    body = {"prompt": "a", "n": 4, "stream": True, "stream_options": options}
    return OpenAICall(COMPLETIONS, body, "tiny")


def answer(index: int, *warnings: str) -> CompletedAnswer:
    return CompletedAnswer(
        id=str(index),
        model="tiny",
        created=0,
        text="",
        reply=Reply(text=""),
        deltas=(),
        finish=Finish(reason=FinishReason.STOP, usage=USAGES[index]),
        streaming=True,
        warnings=warnings,
    )


def ended(call: OpenAICall, *answers: tuple[int, CompletedAnswer]) -> reading.ReadResponse:
    blocks = [call.encode_opening(0, index) for index in range(4)]
    blocks += [call.encode_closing(each, index) for index, each in answers]
    return reading.read_stream([block for block in [*blocks, DONE] if block])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_usage_does_not_depend_on_the_order_of_endings(options: dict[str, Any] | None) -> None:
    for order in permutations(range(4)):
        response = ended(create_call(options), *((index, answer(index)) for index in order))
        assert list(response.choices) == list(order)
        assert response.usage == (TOTAL if options != {"include_usage": False} else None)
        assert len(response.sent) == 4 + (options == {"include_usage": True})
    assert create_call().encode_response(*map(answer, range(4)))["usage"] == TOTAL
    prompt_details = CompletionUsage.model_validate(TOTAL, strict=True).prompt_tokens_details
    assert prompt_details is not None
    assert prompt_details.cached_tokens == 4


def test_each_warning_is_sent_once() -> None:
    response = ended(
        create_call(),
        (1, answer(1, "one")),
        (0, answer(0, "one", "two")),
        (3, answer(3, "two", "one")),
        (2, answer(2)),
    )
    assert [chunk.get("warnings") for chunk in response.sent] == [["one"], ["two"], None, None]
