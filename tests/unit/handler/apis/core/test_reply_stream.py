"""An answer as the parts of a reply, in any division of the output."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from engine import Delta
from engine.reply.parts import CallArguments, CallStart, Part, ReasoningPart, TextPart
from handler.apis.core.best_of import build_requests
from handler.apis.core.reply_stream import stream_reply
from handler.apis.openai.call import OpenAICall
from handler.apis.openai.chat import CHAT
from handler.generation.active_generation import ActiveGeneration

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "tools": [TOOL]}
OUTPUT = '<think>sum</think>so: <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


class FakeGeneration:
    """Yields deltas, and an answer that is only an object to recognise."""

    starts_in_reasoning = False

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        (self.request,) = build_requests(OpenAICall(CHAT, BODY, "tiny").parsed)
        self.answer: Any = object()

    async def batches(self, interval_s: float) -> AsyncIterator[list[Delta]]:
        for text in self._texts:
            yield [Delta(text)]

    async def build_answer(self) -> Any:
        return self.answer


async def read(texts: Sequence[str], part_chars: int = 1_000) -> tuple[list[Part], bool]:
    generation = FakeGeneration(texts)
    items = [
        item
        async for item in stream_reply(
            cast("ActiveGeneration", generation),
            part_chars=part_chars,
        )
    ]
    last = items.pop()
    return [part for parts in cast("list[list[Part]]", items) for part in parts], (
        last is generation.answer
    )


@given(st.lists(st.integers(0, len(OUTPUT)), max_size=8), st.integers(1, 40))
async def test_parts_do_not_depend_on_the_division_of_the_output(
    cuts: list[int], part_chars: int
) -> None:
    edges = [0, *sorted(cuts), len(OUTPUT)]
    texts = [OUTPUT[start:end] for start, end in itertools.pairwise(edges)]
    parts, ends_with_answer = await read(texts, part_chars)
    assert ends_with_answer
    assert "".join(each.text for each in parts if isinstance(each, ReasoningPart)) == "sum"
    assert "".join(each.text for each in parts if isinstance(each, TextPart)) == "so:"
    assert [each.name for each in parts if isinstance(each, CallStart)] == ["add"]
    arguments = "".join(each.text for each in parts if isinstance(each, CallArguments))
    assert arguments == '{"a": 1}'


async def test_no_part_is_longer_than_the_limit() -> None:
    parts, _ = await read(["x" * 95], part_chars=10)
    assert [len(cast("TextPart", each).text) for each in parts] == [10] * 9 + [5]
