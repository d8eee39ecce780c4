"""How llama.cpp's threads wait for each other: a short spin, no spin, or an endless one.

The same engine in its own process, three times, with one thread per core; only the OpenMP variables
differ. One is measured at a time, in turns, with a new prompt: alone, and next to a process that
keeps one core busy, as a server or another program may do.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from unittest.mock import patch

import uvloop

from benchmarks.measure import Table, take_turns
from benchmarks.options import Options, print_progress
from engine import BackendConfig, Engine, EngineConfig, GenerationRequest, SamplingParams
from handler.models.default_model import DEFAULT_MODEL_NAME, DEFAULT_MODEL_PATH

NAME = "threads"
_LIMIT_S = 900.0
_AS_SHIPPED: dict[str, str] = {}
_SLEEP = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
# The default of libgomp: a spin of about 3 ms.
_SPIN = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "300000"}
# Exits when its parent has ended.
_BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(100_000):
        pass
"""


@contextmanager
def _busy() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", _BUSY]) as process:
        try:
            yield
        finally:
            process.kill()


_BACKGROUND_LOADS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "alone": nullcontext,
    "beside a busy core": _busy,
}


def run(options: Options) -> list[Table]:
    """Measure the embedded model."""
    if not DEFAULT_MODEL_PATH.exists():
        print_progress(
            f"{NAME}: skipped, there is no {DEFAULT_MODEL_PATH.name}; `make bench` fetches it"
        )
        return []
    return uvloop.run(_run(options))


async def _run(options: Options) -> list[Table]:
    tokens = options.size(24, 4)
    peers = {"asleep at once": _SLEEP, "spinning on": _SPIN}
    tables = []
    async with asyncio.timeout(_LIMIT_S), AsyncExitStack() as stack:
        ours = await stack.enter_async_context(_engine(_AS_SHIPPED))
        for how, variables in peers.items():
            table = Table(title=f"{NAME}, {how}", ours="spinning for a moment", peer=how)
            async with _engine(variables) as peer:
                for background, others in _BACKGROUND_LOADS.items():
                    print_progress(f"{NAME}: {how}, {background}, {options.pairs} pairs")
                    with others():
                        pairs = await take_turns(
                            options.pairs, _rate(ours, tokens), _rate(peer, tokens)
                        )
                    table.compare(f"1 stream, {background}", "tokens/s", pairs)
            tables.append(table)
    return tables


@asynccontextmanager
async def _engine(variables: dict[str, str]) -> AsyncIterator[Engine]:
    known = {
        name: os.environ[name] for name in os.environ if not name.startswith(("OMP_", "GOMP_"))
    }
    config = BackendConfig.from_wire(
        "llamacpp", {"model_path": str(DEFAULT_MODEL_PATH), "model_name": DEFAULT_MODEL_NAME}
    )
    engine = Engine(EngineConfig(backend=config, isolation="process"))
    try:
        with patch.dict(os.environ, known | variables, clear=True):
            await engine.ready()
        yield engine
    finally:
        await engine.close()


_numbers = itertools.count(1)


def _rate(engine: Engine, tokens: int) -> Callable[[], Awaitable[float]]:
    sampling = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)

    async def measure() -> float:
        prompt = f"{next(_numbers)} notes on tea, and how it came to this town."
        started = time.perf_counter()
        async with await engine.generate(
            GenerationRequest(prompt=prompt, sampling=sampling)
        ) as answer:
            async for _ in answer:
                pass
            await answer.wait_ended()
        assert answer.result is not None, answer.error
        assert answer.result.usage.completion_tokens == tokens, "a token was lost"
        return tokens / (time.perf_counter() - started)

    return measure
