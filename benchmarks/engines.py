"""Engines and requests for the benchmarks without HTTP."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.scripts import MODEL, RKLLM_CONTEXT, burst_text
from benchmarks.stamping import STAMP
from engine import BackendConfig, Engine, EngineConfig, GenerationRequest, SamplingParams
from engine.config import Isolation
from handler.job.job_handler import JobHandler
from handler.pipeline import Pipeline

ISOLATIONS: tuple[Isolation, Isolation] = ("process", "thread")
TEXT_STAMP = re.compile(STAMP.pattern.decode())


def scripted(script: Path) -> BackendConfig:
    """Return the scripted backend with a script."""
    return BackendConfig.from_wire("scripted", {"model_path": str(script), "model_name": MODEL})


def rkllm(library: Path, model: Path) -> BackendConfig:
    """Return the RKLLM backend with a library and its model."""
    options = {
        "model_path": str(model),
        "model_name": MODEL,
        "context_length": RKLLM_CONTEXT,
        "lib_path": str(library),
    }
    return BackendConfig.from_wire("rkllm", options)


@asynccontextmanager
async def both(backend: BackendConfig) -> AsyncIterator[tuple[Engine, Engine]]:
    """Yield two loaded engines with the same backend, with process isolation first and thread
    isolation second.

    Both are loaded within the context, so that they can be measured in turns; an idle engine uses
    no time.
    """
    async with AsyncExitStack() as stack:
        engines = []
        for isolation in ISOLATIONS:
            engine = Engine(EngineConfig(backend=backend, isolation=isolation))
            stack.push_async_callback(engine.close)
            await engine.ready()
            engines.append(engine)
        yield engines[0], engines[1]


def request(tokens: int) -> GenerationRequest:
    """Return a request for `tokens` tokens."""
    return GenerationRequest(prompt="a prompt", sampling=SamplingParams(max_tokens=tokens))


def consumer_latencies_ms(engine: Engine, tokens: int) -> Callable[[], Awaitable[list[float]]]:
    """Return a measurement of each stamped token's latency to the consumer."""

    async def measure() -> list[float]:
        results = []
        async with await engine.generate(request(tokens)) as stream:
            async for batch in stream:
                now = time.monotonic_ns()
                results += [
                    (now - int(stamp)) / 1e6
                    for delta in batch
                    for stamp in TEXT_STAMP.findall(delta.text)
                ]
            await stream.wait_ended()
        assert len(results) == tokens, "a token was lost"
        return results

    return measure


def job_seconds(
    engine: Engine, job_input: dict[str, Any], tokens: int, jobs: int
) -> Callable[[], Awaitable[float]]:
    """Return a measurement of the seconds per job, for consecutive jobs.

    `job_input` is the input of the jobs without the number of tokens.
    """
    handler = JobHandler(Pipeline(engine, MODEL))
    job = {"id": "job", "input": {**job_input, "sampling_params": {"max_tokens": tokens}}}
    expected = burst_text(tokens)

    async def measure() -> float:
        elapsed = 0.0
        for _ in range(jobs):
            started = time.perf_counter()
            output = await handler.run(job)
            elapsed += time.perf_counter() - started
            [choice] = output["choices"]
            assert choice["text"] == expected, "a token was lost"
            assert len(choice.get("deltas", ())) in (0, tokens), "a delta holds two tokens"
        return elapsed / jobs

    return measure
