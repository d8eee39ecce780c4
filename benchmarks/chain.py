"""End to end: from the token callback to the bytes that a client reads.

Ours is the server of `make serve`, with the engine in its own process, and a scripted engine at
full speed or at 20 tokens/s. The peer is the usual server over such a callback
(`processes/queue_server.py`), with the same backend and the same client, measured in turns with
ours. The first row is the speed of the producer alone. The client parses nothing while it reads.
Client, server and engine share the cores of the machine; with two cores, ours has one process more
than cores, the peer has not.

Each stream's text is compared with the produced text, because a server that loses tokens has no
valid speed.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from time import perf_counter

import uvloop

from benchmarks.measure import Table, min_budget, take_turns
from benchmarks.options import Options, print_progress
from benchmarks.scripts import write_burst, write_stamps
from benchmarks.servers import run_server
from benchmarks.stamping import environment
from benchmarks.streams import (
    COALESCED,
    FIRST_PACE,
    LIMIT_S,
    PACE,
    burst_rate,
    first_tokens,
    settings,
    steady,
)
from engine import SamplingParams
from engine.backends.options import ScriptedOptions
from engine.backends.scripted import ScriptedBackend
from engine.output import TokenLogprob

NAME = "chain"
_STREAMS = 4
_NOTES = (
    "The peer gets fewer tokens in a burst, because its rate does not depend on their number.",
    COALESCED,
)


def run(options: Options) -> list[Table]:
    """Measure bursts, then latencies, each with new servers."""
    table = Table(title=NAME, ours="our server", peer="queue-per-request server")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        burst = write_burst(folder)
        _bare_producer(table, burst, options)
        with (
            run_server("emulator", env=settings("scripted", burst, folder, "burst")) as ours,
            run_server(
                "emulator", ["--event-per-token"], settings("scripted", burst, folder, "each")
            ) as per_token,
            run_server("queue_server", [str(burst)]) as peer,
        ):
            uvloop.run(_bursts(table, options, ours, per_token, peer))
        for measure, pace in ((first_tokens, FIRST_PACE), (steady, PACE)):
            stamps = write_stamps(folder, pace)
            env = settings("scripted", stamps, folder, stamps.stem) | environment()
            with (
                run_server("emulator", env=env) as ours,
                run_server("queue_server", [str(stamps)]) as peer,
            ):
                uvloop.run(measure(table, options, ours, peer))
    table.notes.extend(_NOTES)
    return [table]


def _bare_producer(table: Table, script: Path, options: Options) -> None:
    """Measure the scripted backend with a callback that only counts, the upper limit for any
    server.
    """
    print_progress(f"{NAME}: bare producer")
    tokens = options.size(1_000_000, 100_000)
    backend = ScriptedBackend(ScriptedOptions(model_path=str(script)))
    backend.load()

    def on_piece(piece: bytes, token_id: int, logprob: TokenLogprob | None) -> bool:
        return token_id == tokens

    rates = []
    for _ in range(options.pairs):
        started = perf_counter()
        backend.run(1, "a prompt", SamplingParams(), on_piece)
        rates.append(tokens / (perf_counter() - started))
    table.add_single("bare producer, no server at all", "tokens/s", rates)


async def _bursts(table: Table, options: Options, ours: int, per_token: int, peer: int) -> None:
    tokens, of_peer = options.size(400_000, 40_000), options.size(20_000, 5_000)
    async with asyncio.timeout(LIMIT_S):
        for streams in (1, _STREAMS):
            name = f"burst, {streams} stream{'s' if streams > 1 else ''}"
            print_progress(f"{NAME}: {name}, {options.pairs} pairs")
            pairs = await take_turns(
                options.pairs,
                burst_rate(ours, tokens // streams, streams=streams),
                burst_rate(peer, of_peer // streams, streams=streams),
            )
            budget = min_budget(200_000) if streams == 1 else None
            table.compare(f"{name}, coalesced", "tokens/s", pairs, budget)
        print_progress(f"{NAME}: burst, one event per token, {options.pairs} pairs")
        tokens = options.size(100_000, 20_000)
        pairs = await take_turns(
            options.pairs,
            burst_rate(per_token, tokens, each_its_own=True),
            burst_rate(peer, of_peer, each_its_own=True),
        )
        table.compare("burst, 1 stream, one event per token", "events/s", pairs, min_budget(35_000))
