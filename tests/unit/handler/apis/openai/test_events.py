"""Blocks of events: complete, and none too large for the platform that forwards them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from engine import Delta, FinishReason, TokenLogprob, Usage
from engine.output import Finish
from engine.reply.reply import Reply
from handler.apis.core.parallel import CompletedGenerations, Part
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.completions import COMPLETIONS
from handler.apis.openai.events import stream_events
from handler.delivery import limits
from handler.generation.completed_answer import CompletedAnswer
from tests.unit.handler.apis.openai import reading

TOPS = tuple((f"other {number}", -2.0) for number in range(5))


class Ready(CompletedGenerations):
    """Generations whose parts are all available at once, as for a slow reader."""

    def __init__(self, answers: list[CompletedAnswer], deltas: list[list[Delta]]) -> None:
        super().__init__(answers)
        self._deltas = deltas

    async def batches(self, interval_s: float = 0.0) -> AsyncIterator[list[Part]]:
        """Yield each choice in two batches, which come among those of the others."""
        halves: list[Part] = [(at, deltas[::2]) for at, deltas in enumerate(self._deltas)]
        halves += [(at, deltas[1::2]) for at, deltas in enumerate(self._deltas)]
        yield [*halves, *enumerate(self._answers)]


@pytest.mark.parametrize("text", ["long " * 40, '"'], ids=["much text", "many tokens"])
async def test_no_block_is_larger_than_a_chunk(text: str) -> None:
    # R5, R29: for any number of choices and any amount of token data.
    body = {"prompt": "hi", "n": 3, "stream": True, "logprobs": 5}
    call = OpenAICall(COMPLETIONS, body, "tiny")
    deltas = [
        Delta(text, TokenLogprob(text, -1.5, TOPS, b"", len(text) * at)) for at in range(2000)
    ]
    yielded = [*deltas[::2], *deltas[1::2]]
    answers = [
        CompletedAnswer(
            id=call.parsed.id,
            model="tiny",
            created=1,
            text=text * len(yielded),
            reply=Reply(text=text * len(yielded)),
            deltas=tuple(delta.text for delta in yielded),
            finish=Finish(reason=FinishReason.STOP, usage=Usage(1, len(yielded))),
            streaming=True,
        )
    ] * 3
    blocks = [block async for block in stream_events(call, Ready(answers, [deltas] * 3))]
    assert len(blocks) > 1
    for block in blocks:
        assert limits.sdk_size_bytes({"output": block.decode()}) <= limits.STREAM_CHUNK_BYTES
    streamed = reading.read_stream(blocks)
    assert [choice.text for choice in streamed.choices.values()] == [text * len(yielded)] * 3


async def test_deltas_of_a_choice_are_merged_into_one_event() -> None:
    # R29
    call = OpenAICall(COMPLETIONS, {"prompt": "hi", "n": 2, "stream": True}, "tiny")
    answer = CompletedAnswer(
        id=call.parsed.id,
        model="tiny",
        created=1,
        text="ab",
        reply=Reply(text="ab"),
        deltas=("a", "b"),
        finish=Finish(reason=FinishReason.STOP, usage=Usage(1, 2)),
        streaming=True,
    )
    deltas = [Delta("a"), Delta("b")]
    blocks = [block async for block in stream_events(call, Ready([answer] * 2, [deltas] * 2))]
    assert len(blocks) == 1
    texts = [chunk["choices"][0]["text"] for chunk in reading.read_chunks(blocks)]
    assert texts == ["ab", "ab", "", ""]


async def test_unicode_line_ends_are_escaped() -> None:
    # R29: httpx, for one, splits text as `str.splitlines` does.
    text = 'a\u2028data: {"made": "up"}\u2029b\u0085c\nd\x1ce'
    call = OpenAICall(COMPLETIONS, {"prompt": "hi", "stream": True}, "tiny")
    answer = CompletedAnswer(
        id=call.parsed.id,
        model="tiny",
        created=1,
        text=text,
        reply=Reply(text=text),
        deltas=(text,),
        finish=Finish(reason=FinishReason.STOP, usage=Usage(1, 1)),
        streaming=True,
    )
    blocks = [block async for block in stream_events(call, Ready([answer], [[Delta(text)]]))]
    lines = b"".join(blocks).decode().splitlines()
    assert all(line.startswith("data: ") for line in lines if line)
    assert len([line for line in lines if line]) == b"".join(blocks).count(b"\n\n")
    assert reading.read_stream(blocks).choices[0].text == text
