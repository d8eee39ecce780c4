"""Streams over HTTP: the measurements that two benchmarks share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.client import ask, ask_all
from benchmarks.machine import CORES_ASLEEP, MOODS
from benchmarks.measure import (
    Budget,
    Table,
    latencies_in_turns,
    max_budget,
    percentile,
    take_turns,
)
from benchmarks.options import Options, print_progress
from benchmarks.scripts import MODEL, burst_text

# A usual pace of a model, and one that is fast enough for a short series of first tokens and slow
# enough that the second token does not delay the first.
PACE = 20.0
FIRST_PACE = 200.0
LIMIT_S = 900.0
COALESCED = (
    "An event of ours contains all tokens since the previous one, so a burst is coalesced. For one "
    "event per token, each token becomes its own event; tokens that arrive together are still "
    "written at once."
)
_PATH = "/v1/completions"
# Token ids, which engines use unchanged.
PROMPT = [1, 2, 3]


def settings(engine: str, model: Path, folder: Path, name: str, **more: str) -> dict[str, str]:
    """Return our server's environment; `name` is unique among the servers of a folder."""
    return {
        "ENGINE": engine,
        "MODEL_PATH": str(model),
        "MODEL_NAME": MODEL,
        "JOB_DB": str(folder / f"{name}.sqlite3"),
        "LOG_LEVEL": "WARNING",
        **more,
    }


def burst_rate(
    port: int, tokens: int, *, streams: int = 1, asks: int = 1, each_its_own: bool = False
) -> Callable[[], Awaitable[float]]:
    """Return a measurement of the tokens per second of bursts, over all streams.

    `asks` is the number of consecutive requests; only the time between request and last byte
    counts. `each_its_own` requires an event for each token.
    """
    expected = burst_text(tokens)

    async def measure() -> float:
        elapsed_ns = 0
        for _ in range(asks):
            replies = await ask_all(port, _PATH, [_body(tokens)] * streams)
            for reply in replies:
                assert reply.text() == expected, "a token was lost"
                # The last event has the finish reason and no text.
                assert not each_its_own or reply.events == tokens + 1, "tokens shared an event"
            sent_ns = min(reply.sent_ns for reply in replies)
            elapsed_ns += max(reply.times[-1] for reply in replies) - sent_ns
        return tokens * streams * asks / (elapsed_ns / 1e9)

    return measure


async def first_tokens(table: Table, options: Options, ours: int, peer: int) -> None:
    """Compare the first tokens of two idle servers."""
    print_progress(f"{table.title}: first token, {options.pairs} pairs")
    asks = options.size(10, 3)
    async with asyncio.timeout(LIMIT_S):
        pairs = await take_turns(
            options.pairs, _first_token_ms(ours, asks), _first_token_ms(peer, asks)
        )
    table.compare("first token, idle server", "ms", pairs, max_budget(3.0))


def _first_token_ms(port: int, asks: int) -> Callable[[], Awaitable[float]]:
    """Return a measurement of the median time from a request to its first event."""

    async def measure() -> float:
        replies = [await ask(port, _PATH, _body(2)) for _ in range(asks)]
        return percentile([reply.first_event_ms for reply in replies], 50)

    return measure


async def steady(
    table: Table,
    options: Options,
    ours: int,
    peer: int,
    *,
    what: str = "",
    p50: Budget | None = None,
    p95: Budget | None = None,
) -> None:
    """Compare the latency of stamped tokens to the client at a model's pace.

    `what` distinguishes several of our servers. The budgets are for the cores asleep: awake, one
    version varies more than two versions differ (docs/decisions/0034).
    """
    tokens = options.size(40, 10)
    for mood, cores in MOODS.items():
        name = f"callback to client at {PACE:g} tokens/s, {what}{mood}"
        print_progress(f"{table.title}: {name}, {options.pairs} pairs")
        with cores():
            async with asyncio.timeout(LIMIT_S):
                middle, tail = await latencies_in_turns(
                    options.pairs, _latencies_ms(ours, tokens), _latencies_ms(peer, tokens)
                )
        has_budget = mood == CORES_ASLEEP
        table.compare(f"{name}, p50", "ms", middle, p50 if has_budget else None)
        table.compare(f"{name}, p95", "ms", tail, p95 if has_budget else None)


def _latencies_ms(port: int, tokens: int) -> Callable[[], Awaitable[list[float]]]:
    """Return a measurement of each stamped token's latency to the client."""

    async def measure() -> list[float]:
        results = (await ask(port, _PATH, _body(tokens))).latencies_ms()
        assert len(results) == tokens, "a token was lost"
        # The first token also waits for the response headers; it has its own row.
        return results[1:]

    return measure


def _body(tokens: int) -> dict[str, Any]:
    return {"model": MODEL, "prompt": PROMPT, "max_tokens": tokens, "stream": True}
