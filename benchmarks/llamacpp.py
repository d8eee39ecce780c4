"""Our server over llama.cpp against the same library's own HTTP listener.

What separates them is ours alone: Python, the engine's process, the stream, the event. The library
and its build, the model, slots, context, threads, batch sizes and every sampling parameter are the
same, decoding is greedy and never ends early, so both do the same arithmetic. Both stay loaded, and
only one is asked at a time, in turns. Each turn has prompts of its own that no earlier one begins
with, and both servers see each of them once: neither finds in its cache what the other computes.
Chats begin alike, with what the model's template puts there; so they do for both. Ours keeps a chat
in its slot for its next turn, where the peer takes the slot that begins most alike: after other
prompts the template's words are computed once for each slot, and once in all by the peer. That is
not in the figures, for one route is measured after the other.

Then chats of ten turns (`ten_turns`), where it counts that the cache is used.
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
from benchmarks.greedy import CHAT, COMPLETIONS, chat, completion, text, user
from benchmarks.measure import Pairs, Table, at_least, at_most
from benchmarks.options import Options, say
from benchmarks.servers import serving
from benchmarks.ten_turns import ten_turns
from engine.default_model import DEFAULT_MODEL_NAME, DEFAULT_MODEL_PATH

NAME = "llamacpp"
_ROUTES = ("completions", "chat")
_SLOTS = 4
# Room for the longest chat.
_CONTEXT = 2048
_LIMIT_S = 4000.0
# So many times a turn: what is promised is less than one pair differs from the next.
_TIMES = 4
_SUBJECTS = (
    "lighthouses", "tea", "clocks", "rivers", "bridges", "owls", "bread", "maps", "copper", "rain",
    "violins", "ladders", "moss", "trains", "salt", "kites", "windows", "apples", "ships", "glass",
)  # fmt: skip
# The route, how many streams, whether streamed.
_Case = tuple[str, int, bool]


def run(options: Options) -> list[Table]:
    """Measure both servers over the embedded model."""
    if not DEFAULT_MODEL_PATH.exists():
        say(f"{NAME}: skipped, there is no {DEFAULT_MODEL_PATH.name}; `make bench` fetches it")
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
        say(f"{NAME}: loading the model twice")
        with (
            serving("emulator", env=env) as ours,
            serving("llama_listener", [model, str(_SLOTS), str(_CONTEXT)]) as peer,
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
        # The first turn with a route warms up and is not counted. One route at a time, as a server
        # is mostly used: what its prompts begin with, the template's own words, is in every slot.
        for route, turn in product(_ROUTES, range(options.pairs + 1)):
            pair = f"pair {turn} of {options.pairs}" if turn else "warming up"
            say(f"{NAME}: {route}, {pair}")
            for streams, streamed, time in _asked(turn):
                case = (route, streams, streamed)
                asked = {
                    port: await _ask(port, case, time, tokens)
                    for port in ((ours, peer) if time % 2 else (peer, ours))
                }
                by_ours, by_peer = asked[ours], asked[peer]
                texts = [
                    [text(reply, tokens, streamed=streamed) for reply in replies]
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
        table.compare(f"{name}, {how}", "tokens/s", pairs, at_least(0.97, "ratio"))
    for (route, streams, _), pairs in firsts.items():
        name = "time to first token" if streams == 1 else f"the last of {streams} first tokens"
        table.compare(f"{route}, {name}", "ms", pairs, at_most(1.1, "ratio"))
    table.notes.append(
        f"{tokens} tokens per stream, {_TIMES} pairs per turn; the time includes the prompt. Of "
        f"{4 * _TIMES * options.pairs} greedy answers with one stream, {same} were the same text "
        "on both sides."
    )


def _asked(turn: int) -> Iterator[tuple[int, bool, int]]:
    """Yield how many streams are asked for in a turn, how, and which time that is of all."""
    for streams, streamed in product((1, _SLOTS), (True, False)):
        for time in range(turn * _TIMES, (turn + 1) * _TIMES):
            yield streams, streamed, time


async def _ask(port: int, case: _Case, time: int, tokens: int) -> list[Reply]:
    route, streams, streamed = case
    prompts = [_prompt(time, case, each) for each in range(streams)]
    if route == "chat":
        bodies = [chat([user(prompt)], tokens, streamed=streamed) for prompt in prompts]
        return await ask_all(port, CHAT, bodies)
    bodies = [completion(prompt, tokens, streamed=streamed) for prompt in prompts]
    return await ask_all(port, COMPLETIONS, bodies)


def _prompt(time: int, case: _Case, each: int) -> str:
    """Return a prompt whose first words nothing else has: a shared prefix would not be computed."""
    route, streams, streamed = case
    number = (time * 2 + (streams > 1)) * 2 + streamed
    number = (number * 2 + (route == "chat")) * _SLOTS + each
    subject = _SUBJECTS[number % len(_SUBJECTS)]
    return (
        f"{number} notes on {subject}. Chapter {number + 7}: how {subject} came to this town, who "
        "brought them, and what the people made of it in the years that followed."
    )


def _tokens_per_s(replies: list[Reply], tokens: int) -> float:
    asked = min(reply.asked for reply in replies)
    ended = max(reply.times[-1] for reply in replies)
    return len(replies) * tokens / ((ended - asked) / 1e9)


def _last_first_ms(replies: list[Reply]) -> float:
    return max(reply.first_text_ms for reply in replies)
