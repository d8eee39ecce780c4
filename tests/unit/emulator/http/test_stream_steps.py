"""The chunks of a job in steps of bounded size, between which the event loop runs."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from emulator.http.stream_steps import split_chunks
from jobs import Chunk


def chunks_of(*sizes: int) -> list[Chunk]:
    return [Chunk(1, number, b"x" * size) for number, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((), []),
        ((4,), [[4]]),
        ((4, 6), [[4, 6]]),
        ((4, 6, 1), [[4, 6], [1]]),
        ((11,), [[11]]),
        ((1, 11, 1), [[1], [11], [1]]),
        ((5,) * 5, [[5, 5], [5, 5], [5]]),
        ((0,) * 3, [[0, 0, 0]]),
    ],
)
async def test_split_chunks_fills_each_step(
    sizes: tuple[int, ...], expected: list[list[int]]
) -> None:
    chunks = chunks_of(*sizes)
    steps = [step async for step in split_chunks(chunks, 10)]
    sizes_of_steps = [[len(chunk.value) for chunk in step] for step in steps]
    assert sizes_of_steps == expected
    assert list(itertools.chain(*steps)) == chunks


async def test_split_chunks_lets_the_event_loop_run_between_steps() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    steps = [step async for step in split_chunks(chunks_of(*[10] * 20), 10)]
    counting.cancel()
    assert len(steps) == 20
    assert turns >= 19
