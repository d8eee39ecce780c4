"""RKLLM_N_BATCH: the gain of sharing a run, and the cost where sharing does not help.

Both sides are our engine on the stand-in of `tests/fake_rkllm`, ABI 1.3, in its own process: one
with four requests per run, one with one request after the other. The stand-in computes nothing. A
step takes 10 ms with one request. With four it takes either the same time, which is the best case,
or twice as long: the time on an NPU is unknown.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from benchmarks.measure import Table, take_turns
from benchmarks.options import Options, print_progress
from engine import (
    BackendConfig,
    Engine,
    EngineConfig,
    GenerationRequest,
    Priority,
    SamplingParams,
)
from tests.fake_rkllm import build, write_script
from tests.fake_rkllm.tokenizer import write_tokenizer

NAME = "n_batch"
PLACES = 4
STEP_MS = 10
_LIMIT_S = 60


def run(options: Options) -> list[Table]:
    """Measure both sides in turns."""
    return [asyncio.run(_run(options))]


async def _run(options: Options) -> Table:
    table = Table(title=NAME, ours=f"{PLACES} in a run", peer="one after the other")
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        write_tokenizer(folder)
        async with AsyncExitStack() as stack:

            async def engine(places: int, step_ms: int = STEP_MS) -> Engine:
                return await stack.enter_async_context(_engine(folder, places, step_ms))

            one = await engine(1)
            for answer_length, step_ms in (("as long", STEP_MS), ("twice as long", 2 * STEP_MS)):
                several = await engine(PLACES, step_ms)
                for row, measure in _ROWS.items():
                    print_progress(f"{NAME}: {row}, a step takes {answer_length}")
                    pairs = await take_turns(
                        max(options.pairs // 2, 2), _on(measure, several), _on(measure, one)
                    )
                    table.compare(f"{row}, a step takes {answer_length}", "ms", pairs)
    table.notes.append(
        f"A step takes {STEP_MS} ms with one position; with {PLACES} it takes as long or twice as "
        "long, as the rows say."
    )
    return table


def _on(
    measure: Callable[[Engine], Awaitable[float]], engine: Engine
) -> Callable[..., Awaitable[float]]:
    async def measured() -> float:
        async with asyncio.timeout(_LIMIT_S):
            return await measure(engine)

    return measured


@asynccontextmanager
async def _engine(folder: Path, places: int, step_ms: int) -> AsyncIterator[Engine]:
    model = write_script(
        folder / f"model-{places}-{step_ms}.rkllm",
        "chatter none\nanswer\n  thread caller\n  abort ms=0\n"
        f'  say "\\{{i}} " us={step_ms * 1000} times=asked\n',
    )
    options = {
        "model_path": str(model),
        "model_name": "model",
        "context_length": 4096,
        "lib_path": str(build("1.3", folder)),
        "kv_reuse": False,
        "n_batch": places,
    }
    made = Engine(EngineConfig(backend=BackendConfig.from_wire("rkllm", options)))
    try:
        await made.ready()
        yield made
    finally:
        await made.close()


async def _answer(engine: Engine, tokens: int, priority: Priority = Priority.JOB) -> None:
    """Request `tokens` tokens and check them."""
    request_sent = GenerationRequest(
        prompt=(0, tokens), sampling=SamplingParams(), priority=priority
    )
    got: list[str] = []
    async with await engine.generate(request_sent) as stream:
        async for batch in stream:
            got += [delta.text for delta in batch]
    if "".join(got) != "".join(f"{i} " for i in range(tokens)):
        raise AssertionError(f"{tokens} tokens were asked for, and {got} came")


async def _all_of(engine: Engine, *tokens: int) -> float:
    loop = asyncio.get_running_loop()
    started = loop.time()
    await asyncio.gather(*(_answer(engine, each) for each in tokens))
    return (loop.time() - started) * 1000


async def _latecomer(engine: Engine, *tokens: int) -> float:
    """Return the time of a short interactive request that arrives when jobs have just started."""
    loop = asyncio.get_running_loop()
    jobs = [asyncio.create_task(_answer(engine, each)) for each in tokens]
    await asyncio.sleep(1.5 * STEP_MS / 1000)
    started = loop.time()
    await _answer(engine, 5, Priority.INTERACTIVE)
    took = (loop.time() - started) * 1000
    await asyncio.gather(*jobs)
    return took


_ROWS: dict[str, Callable[[Engine], Awaitable[float]]] = {
    "4 answers of 40 tokens, until the last": lambda engine: _all_of(engine, 40, 40, 40, 40),
    "answers of 60, 5, 5 and 5 tokens, until the last": lambda engine: _all_of(engine, 60, 5, 5, 5),
    "an answer of 20 tokens, alone": lambda engine: _all_of(engine, 20),
    "an interactive one of 5 tokens, after jobs of 5, 5, 5 and 60 began": lambda engine: _latecomer(
        engine, 5, 5, 5, 60
    ),
}
