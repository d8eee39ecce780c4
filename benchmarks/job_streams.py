"""The first tokens of a job: from `POST /run` to the first chunk of `/stream`.

Our server streams while the job runs, by polling for JSON and as server-sent events. The SDK's
local server runs the whole handler when `/stream` is called and responds at the end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.client import Reply, WrongAnswer, ask
from benchmarks.measure import Pairs, Table
from benchmarks.options import Options, print_progress
from benchmarks.scripts import job_body, write_answer
from benchmarks.servers import is_running_jobs, run_server
from benchmarks.streams import settings

_CHUNKS, _GAP_S = 50, 0.02
_WORDS = " ".join(f"{number:02d}" for number in range(_CHUNKS))
_LIMIT_S = 900.0

# Time from the request to the first and to the last chunk, in milliseconds.
_Times = tuple[float, float]


def first_chunks(table: Table, options: Options, folder: Path) -> None:
    """Compare both of our forms with the SDK's server."""
    script = write_answer(folder, _WORDS, gap_s=_GAP_S)
    env = settings("scripted", script, folder, "streams", STREAM_MODE="generator")
    chunks = folder / "chunks.json"
    chunks.write_text(json.dumps({"chunks": _pieces(), "gap_s": _GAP_S}))
    with (
        run_server("emulator", env=env) as ours,
        run_server("sdk_server", [str(chunks), "--stream"], ready=is_running_jobs) as peer,
    ):
        uvloop.run(_measure(table, options, ours, peer))


async def _measure(table: Table, options: Options, ours: int, peer: int) -> None:
    name = f"/run to the chunks of /stream, {_CHUNKS} chunks {_GAP_S * 1000:g} ms apart"
    async with asyncio.timeout(_LIMIT_S):
        for form, stream in {"as events": _events, "as JSON": _json}.items():
            print_progress(f"{table.title}: {name}, {form}, {options.pairs} pairs")
            first, last = await _in_turns(options.pairs, _turn(ours, stream), _turn(peer, _peer))
            table.compare(f"{name}, {form}: the first", "ms", first)
            table.compare(f"{name}, {form}: the last", "ms", last)


async def _in_turns(
    pairs: int, ours: Callable[[], Awaitable[_Times]], peer: Callable[[], Awaitable[_Times]]
) -> tuple[Pairs, Pairs]:
    await ours()
    await peer()
    first, last = Pairs(), Pairs()
    for _ in range(pairs):
        (our_first, our_last), (its_first, its_last) = await ours(), await peer()
        first.add(our_first, its_first)
        last.add(our_last, its_last)
    return first, last


def _turn(
    port: int, stream: Callable[[int, str, int], Awaitable[_Times]]
) -> Callable[[], Awaitable[_Times]]:
    async def measure() -> _Times:
        reply = await ask(port, "/run", job_body(stream=True))
        return await stream(port, reply.json()["id"], reply.sent_ns)

    return measure


async def _events(port: int, job_id: str, sent_ns: int) -> _Times:
    reply = await ask(port, f"/stream/{job_id}", accept="text/event-stream")
    events = [line[6:] for line in reply.body.split(b"\n") if line.startswith(b"data: ")]
    *chunks, end = map(json.loads, events)
    if end.get("status") != "COMPLETED":
        raise WrongAnswer(f"the stream ended with {end}")
    _check(chunk["output"] for chunk in chunks)
    before_ms = (reply.sent_ns - sent_ns) / 1e6
    return reply.first_event_ms + before_ms, _last_ms(reply, sent_ns)


async def _json(port: int, job_id: str, sent_ns: int) -> _Times:
    times, chunks, status = [], [], ""
    while status != "COMPLETED":
        reply = await ask(port, f"/stream/{job_id}", {})
        answer = reply.json()
        status = answer["status"]
        if answer["stream"]:
            times.append(_last_ms(reply, sent_ns))
            chunks += answer["stream"]
        elif status not in ("IN_QUEUE", "IN_PROGRESS", "COMPLETED"):
            raise WrongAnswer(f"/stream answered {answer}")
    _check(chunk["output"] for chunk in chunks)
    return times[0], times[-1]


async def _peer(port: int, job_id: str, sent_ns: int) -> _Times:
    reply = await ask(port, f"/stream/{job_id}", {})
    answer = reply.json()
    if [chunk["output"] for chunk in answer.get("stream", ())] != _pieces():
        raise WrongAnswer(f"/stream answered {answer}")
    all_ms = _last_ms(reply, sent_ns)
    return all_ms, all_ms


def _check(outputs: Any) -> None:
    """Raise WrongAnswer unless the streamed text, without the final aggregate, is the answer."""
    *parts, aggregate = [output["choices"][0]["text"] for output in outputs]
    if "".join(parts) != _WORDS or aggregate != _WORDS:
        raise WrongAnswer(f"{''.join(parts)!r} was streamed, {aggregate!r} was the answer")


def _last_ms(reply: Reply, sent_ns: int) -> float:
    return (reply.times[-1] - sent_ns) / 1e6


def _pieces() -> list[str]:
    first, *others = _WORDS.split(" ")
    return [first, *(f" {word}" for word in others)]
