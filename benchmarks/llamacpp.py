"""Our server over llama.cpp against the HTTP server of the same library.

The difference is our own code: Python, the engine's process, the stream, the events. The library
and its build, the model, slots, context, threads, batch sizes and all sampling parameters are the
same. Decoding is greedy and never ends early, so both do the same arithmetic. Both stay loaded, and
one is measured at a time, in turns. Each turn has new prompts without a common prefix with earlier
ones, and both servers get each prompt once, so neither finds in its cache what the other computes.
All chats start with the words of the model's template. Ours keeps a chat in its slot for its next
turn; the peer takes the slot with the longest common prefix. After other prompts, ours computes the
template's words once per slot and the peer once in all. That is not in the figures, because routes
are measured one after the other.

Then chats of ten turns follow (`ten_turns`), which benefit from the cache.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import uvloop

from benchmarks.client import Reply, ask_all
from benchmarks.greedy import CHAT, COMPLETIONS, answer_text, chat, completion, user_message
from benchmarks.measure import Pairs, Table, max_budget, min_budget
from benchmarks.options import Options, print_progress
from benchmarks.servers import run_server
from benchmarks.ten_turns import ten_turns
from handler.models.default_model import DEFAULT_MODEL_NAME, DEFAULT_MODEL_PATH

NAME = "llamacpp"
_ROUTES = ("completions", "chat")
_SLOTS = 4
# Context for the longest chat.
_CONTEXT = 2048
_LIMIT_S = 4000.0
# Repetitions per turn, because the budget is smaller than the difference between pairs.
_TIMES = 4
_SUBJECTS = (
    "lighthouses", "tea", "clocks", "rivers", "bridges", "owls", "bread", "maps", "copper", "rain",
    "violins", "ladders", "moss", "trains", "salt", "kites", "windows", "apples", "ships", "glass",
)  # fmt: skip
# The route, the number of streams, and whether they are streamed.
_Case = tuple[str, int, bool]


def run(options: Options) -> list[Table]:
    """Measure both servers with the embedded model."""
    if not DEFAULT_MODEL_PATH.exists():
        print_progress(
            f"{NAME}: skipped, there is no {DEFAULT_MODEL_PATH.name}; `make bench` fetches it"
        )
        return []
    table = Table(title=NAME, ours="our server", peer="the library's own listener")
    chats = Table(title=f"{NAME}, ten turns", ours=table.ours, peer=table.peer)
    model = str(DEFAULT_MODEL_PATH)
    with tempfile.TemporaryDirectory() as folder:
        env = {
            "ENGINE": "llamacpp",
            "MODEL_PATH": model,
            "MODEL_NAME": DEFAULT_MODEL_NAME,
            "MAX_CONCURRENCY": str(_SLOTS),
            "CONTEXT_LENGTH": str(_CONTEXT),
            "JOB_DB": str(Path(folder) / "jobs.sqlite3"),
            "LOG_LEVEL": "WARNING",
        }
        print_progress(f"{NAME}: loading the model twice")
        with (
            run_server("emulator", env=env) as ours,
            run_server("llama_listener", [model, str(_SLOTS), str(_CONTEXT)]) as peer,
        ):
            uvloop.run(_run(table, options, ours, peer))
            uvloop.run(ten_turns(chats, options, ours, peer))
    return [table, chats]


async def _run(table: Table, options: Options, ours: int, peer: int) -> None:
    tokens = options.size(64, 16)
    rates: dict[_Case, Pairs] = defaultdict(Pairs)
    firsts: dict[_Case, Pairs] = defaultdict(Pairs)
    same = 0
    async with asyncio.timeout(_LIMIT_S):
        # The first turn with a route is a warm-up. Routes are measured one after the other, as
        # servers usually serve one route: then each slot has the template's words in its cache.
        for route, turn in product(_ROUTES, range(options.pairs + 1)):
            pair = f"pair {turn} of {options.pairs}" if turn else "warming up"
            print_progress(f"{NAME}: {route}, {pair}")
            for streams, streamed, time in _measurements(turn):
                case = (route, streams, streamed)
                body = {
                    port: await _ask(port, case, time, tokens)
                    for port in ((ours, peer) if time % 2 else (peer, ours))
                }
                by_ours, by_peer = body[ours], body[peer]
                texts = [
                    [answer_text(reply, tokens, streamed=streamed) for reply in replies]
                    for replies in (by_ours, by_peer)
                ]
                if not turn:
                    continue
                rates[case].add(_tokens_per_s(by_ours, tokens), _tokens_per_s(by_peer, tokens))
                if streamed:
                    firsts[case].add(_last_first_ms(by_ours), _last_first_ms(by_peer))
                if streams == 1:
                    same += texts[0] == texts[1]
    for case, pairs in rates.items():
        route, streams, streamed = case
        name = f"{route}, {streams} stream{'s' if streams > 1 else ''}"
        how = "streamed" if streamed else "whole"
        table.compare(f"{name}, {how}", "tokens/s", pairs, min_budget(0.97, "ratio"))
    for (route, streams, _), pairs in firsts.items():
        name = "time to first token" if streams == 1 else f"the last of {streams} first tokens"
        table.compare(f"{route}, {name}", "ms", pairs, max_budget(1.1, "ratio"))
    table.notes.append(
        f"{tokens} tokens per stream, {_TIMES} pairs per turn; the time includes the prompt. Of "
        f"{4 * _TIMES * options.pairs} greedy answers with one stream, {same} were the same text "
        "on both sides."
    )


def _measurements(turn: int) -> Iterator[tuple[int, bool, int]]:
    """Yield the number of streams, the form and the repetition of each measurement of a turn."""
    for streams, streamed in product((1, _SLOTS), (True, False)):
        for time in range(turn * _TIMES, (turn + 1) * _TIMES):
            yield streams, streamed, time


async def _ask(port: int, case: _Case, time: int, tokens: int) -> list[Reply]:
    route, streams, streamed = case
    prompts = [_prompt(time, case, each) for each in range(streams)]
    if route == "chat":
        bodies = [chat([user_message(prompt)], tokens, streamed=streamed) for prompt in prompts]
        return await ask_all(port, CHAT, bodies)
    bodies = [completion(prompt, tokens, streamed=streamed) for prompt in prompts]
    return await ask_all(port, COMPLETIONS, bodies)


def _prompt(time: int, case: _Case, each: int) -> str:
    """Return a prompt with unique first words, because a common prefix would not be computed."""
    route, streams, streamed = case
    number = (time * 2 + (streams > 1)) * 2 + streamed
    number = (number * 2 + (route == "chat")) * _SLOTS + each
    subject = _SUBJECTS[number % len(_SUBJECTS)]
    return (
        f"{number} notes on {subject}. Chapter {number + 7}: how {subject} came to this town, who "
        "brought them, and what the people made of it in the years that followed."
    )


def _tokens_per_s(replies: list[Reply], tokens: int) -> float:
    started = min(reply.sent_ns for reply in replies)
    ended = max(reply.times[-1] for reply in replies)
    return len(replies) * tokens / ((ended - started) / 1e9)


def _last_first_ms(replies: list[Reply]) -> float:
    return max(reply.first_text_ms for reply in replies)
