"""The cost of a token on the wire: 1, 32 and 256 streams, completions and chats.

Both routes are measured on one server in turns, so the difference is the JSON around a text.
Bursts of the scripted engine show the throughput, coalesced and with an event per token. Tokens at
a model's pace, each of which wakes the server, show the cost of a single one. The client is the one
in C (`reader`). The cost is the processor time of our server's process by the kernel's clock, so
client and engine on the same cores are not included.

Before a burst the engine is silent until all requests have arrived, so their cost is not included
either.

Each text of a burst is compared with the produced text, and every stamped token is counted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.client import WrongAnswer
from benchmarks.measure import Pairs, Table, max_budget, percentile
from benchmarks.options import Options, print_progress
from benchmarks.reader import Read, Reader
from benchmarks.scripts import MODEL, burst_text, write_bursts, write_stamps
from benchmarks.servers import our_server, run_server
from benchmarks.stamping import environment
from benchmarks.streams import COALESCED, PACE, settings

T = TypeVar("T")

NAME = "wire"
# The number of streams, and a delay several times as long as their requests need to arrive.
_SILENCES_MS = {1: 300.0, 32: 700.0, 256: 2_500.0}
_SLOTS = max(_SILENCES_MS)
_COMPLETIONS, _CHAT = "/v1/completions", "/v1/chat/completions"
# Number of events without a token: the finish reason, and the role of a chat.
_BARE_EVENTS = {_COMPLETIONS: 1, _CHAT: 2}
_PARITY = max_budget(1.1, "ratio")
# Long enough that the last stream starts before the first one ends, also on a busy machine.
_PACED_TOKENS = {1: 100, 32: 100, 256: 200}
_NOTES = (
    "µs/token: processor time of our server's process, without the engine's and the client's.",
    COALESCED,
)


@dataclass(frozen=True, slots=True)
class _Server:
    """Our server, and the client for it."""

    port: int
    process: int
    reader: Reader

    def ask(self, route: str, streams: int, tokens: int) -> list[Read]:
        """Start streams concurrently; the prompt has their number."""
        prompt = f"{streams} streams"
        body: dict[str, Any] = {"prompt": prompt}
        if route == _CHAT:
            body = {"messages": [{"role": "user", "content": prompt}]}
        body = {"model": MODEL, "max_tokens": tokens, "stream": True, **body}
        return self.reader.ask(self.port, self.process, route, body, streams)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Burst:
    """The figures of a turn of bursts, over all streams."""

    tokens_per_s: float
    events_per_s: float
    cpu_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pace:
    """The figures of a turn at a model's pace; times are from the callback to the client."""

    cpu_us: float
    p50_ms: float
    p95_ms: float


def run(options: Options) -> list[Table]:
    """Measure bursts in both forms, then single tokens."""
    table = Table(title=NAME, ours="/v1/completions", peer="/v1/chat/completions")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reader = Reader(folder)
        words = {f"{streams} streams": silence for streams, silence in _SILENCES_MS.items()}
        script = write_bursts(folder, words, _SLOTS)
        for form, flags in (("coalesced", []), ("one event per token", ["--event-per-token"])):
            env = settings("scripted", script, folder, flags[0] if flags else "burst")
            with run_server("emulator", flags, env) as port:
                server = _Server(port, our_server(port), reader)
                _bursts(table, options, server, form, each_its_own=bool(flags))
        env = settings("scripted", write_stamps(folder, PACE, _SLOTS), folder, "paced")
        with run_server("emulator", env=env | environment()) as port:
            _paced(table, options, _Server(port, our_server(port), reader))
    table.notes.extend(_NOTES)
    return [table]


def _bursts(
    table: Table, options: Options, server: _Server, form: str, *, each_its_own: bool
) -> None:
    in_all = options.size(204_800, 25_600) if each_its_own else options.size(819_200, 51_200)
    for streams in _SILENCES_MS:
        name = f"{_count(streams)}, {form}"
        measure = partial(_burst, server, streams, in_all // streams, each_its_own=each_its_own)
        turns = _in_turns(options, name, measure)
        if not each_its_own:
            table.compare(name, "tokens/s", _pairs(turns, lambda each: each.tokens_per_s))
        table.compare(name, "events/s", _pairs(turns, lambda each: each.events_per_s))
        table.compare(name, "µs/token", _pairs(turns, lambda each: each.cpu_us), _PARITY)


def _burst(server: _Server, streams: int, tokens: int, route: str, *, each_its_own: bool) -> _Burst:
    reads = server.ask(route, streams, tokens)
    expected = burst_text(tokens)
    for each in reads:
        if each.reply.text() != expected:
            raise WrongAnswer(f"{route}: a token was lost")
        if each_its_own and each.reply.events != tokens + _BARE_EVENTS[route]:
            raise WrongAnswer(f"{route}: tokens shared an event")
    seconds = (max(each.end for each in reads) - min(each.first for each in reads)) / 1e9
    cpu_ns = max(each.cpu_end for each in reads) - reads[0].cpu_before
    return _Burst(
        tokens_per_s=streams * tokens / seconds,
        events_per_s=sum(each.reply.events for each in reads) / seconds,
        cpu_us=cpu_ns / 1e3 / (streams * tokens),
    )


def _paced(table: Table, options: Options, server: _Server) -> None:
    for streams in _SILENCES_MS:
        name = f"{_count(streams)}, {PACE:g} tokens/s each"
        turns = _in_turns(options, name, partial(_pace, server, streams, _PACED_TOKENS[streams]))
        table.compare(name, "µs/token", _pairs(turns, lambda each: each.cpu_us), _PARITY)
        name += ", callback to client"
        table.compare(f"{name}, p50", "ms", _pairs(turns, lambda each: each.p50_ms))
        table.compare(f"{name}, p95", "ms", _pairs(turns, lambda each: each.p95_ms))


def _pace(server: _Server, streams: int, tokens: int, route: str) -> _Pace:
    reads = server.ask(route, streams, tokens)
    for each in reads:
        # Raises for rejected requests and incomplete streams.
        each.reply.chunks()
    stamped = [each.reply.stamped() for each in reads]
    if any(len(each) != tokens for each in stamped):
        raise WrongAnswer(f"{route}: a token was lost")
    # Only while all streams run, because starts and ends cost more than a token.
    began, ended = max(each.first for each in reads), min(each.end for each in reads)
    cpu_ns = min(each.cpu_end for each in reads) - max(each.cpu_first for each in reads)
    waits_ms = [
        (arrived - produced) / 1e6
        for each in stamped
        for produced, arrived in each
        if began < arrived < ended
    ]
    if not waits_ms:
        raise WrongAnswer(f"{route}: no {streams} streams ran at once")
    return _Pace(
        cpu_us=cpu_ns / 1e3 / len(waits_ms),
        p50_ms=percentile(waits_ms, 50),
        p95_ms=percentile(waits_ms, 95),
    )


def _count(streams: int) -> str:
    return f"{streams} stream{'s' if streams > 1 else ''}"


def _in_turns(options: Options, name: str, measure: Callable[[str], T]) -> list[tuple[T, T]]:
    """Return the figures of both routes in turns, after a warm-up of each."""
    print_progress(f"{NAME}: {name}, {options.pairs} pairs")
    turns = [(measure(_COMPLETIONS), measure(_CHAT)) for _ in range(options.pairs + 1)]
    return turns[1:]


def _pairs(turns: list[tuple[T, T]], of: Callable[[T], float]) -> Pairs:
    return Pairs([of(ours) for ours, _ in turns], [of(peer) for _, peer in turns])
