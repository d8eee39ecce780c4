"""Our server over llama.cpp against the same library's own HTTP listener.

What separates them is ours alone: Python, the engine's process, the stream, the event. The library
and its build, the model, slots, context, threads, batch sizes and every sampling parameter are the
same, decoding is greedy and never ends early, so both do the same arithmetic. Both stay loaded, and
only one is asked at a time, in turns. Each turn has prompts of its own that no earlier one begins
with, and both servers see each of them once: neither finds in its cache what the other computes.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.client import Reply, ask_all
from benchmarks.measure import Budget, Pairs, Table, at_least, at_most
from benchmarks.options import Options, say
from benchmarks.servers import serving
from engine.default_model import DEFAULT_MODEL_NAME, DEFAULT_MODEL_PATH

NAME = "llamacpp"
_PATH = "/v1/completions"
_SLOTS = 4
_CONTEXT = 1024
_LIMIT_S = 1800.0
_SUBJECTS = (
    "lighthouses", "tea", "clocks", "rivers", "bridges", "owls", "bread", "maps", "copper", "rain",
    "violins", "ladders", "moss", "trains", "salt", "kites", "windows", "apples", "ships", "glass",
)  # fmt: skip


def run(options: Options) -> list[Table]:
    """Measure both servers over the embedded model."""
    if not DEFAULT_MODEL_PATH.exists():
        say(f"{NAME}: skipped, there is no {DEFAULT_MODEL_PATH.name}; `make bench` fetches it")
        return []
    table = Table(title=NAME, ours="our server", peer="the library's own listener")
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
    return [table]


async def _run(table: Table, options: Options, ours: int, peer: int) -> None:
    tokens = options.size(64, 16)
    found: dict[tuple[int, bool], Pairs] = defaultdict(Pairs)
    first: dict[int, Pairs] = defaultdict(Pairs)
    same = 0
    async with asyncio.timeout(_LIMIT_S):
        # The first turn warms up and is not counted.
        for turn in range(options.pairs + 1):
            say(f"{NAME}: pair {turn} of {options.pairs}" if turn else f"{NAME}: warming up")
            for streams in (1, _SLOTS):
                for stream in (True, False):
                    prompts = [_prompt(turn, streams, stream, each) for each in range(streams)]
                    bodies = [_body(prompt, tokens, stream=stream) for prompt in prompts]
                    by_ours, by_peer = [await ask_all(port, _PATH, bodies) for port in (ours, peer)]
                    texts = [
                        [_text(reply, stream, tokens) for reply in replies]
                        for replies in (by_ours, by_peer)
                    ]
                    if not turn:
                        continue
                    found[streams, stream].add(
                        _tokens_per_s(by_ours, tokens), _tokens_per_s(by_peer, tokens)
                    )
                    if stream:
                        first[streams].add(_last_first_ms(by_ours), _last_first_ms(by_peer))
                    if streams == 1:
                        same += texts[0] == texts[1]
    for (streams, stream), pairs in found.items():
        name = f"{streams} stream{'s' if streams > 1 else ''}, {'streamed' if stream else 'whole'}"
        table.compare(name, "tokens/s", pairs, at_least(0.97, "ratio"))
    names = {1: "time to first token", _SLOTS: f"the last of {_SLOTS} first tokens"}
    for streams, pairs in first.items():
        budget: Budget = at_most(1.1, "ratio")
        table.compare(names[streams], "ms", pairs, budget)
    table.notes.append(
        f"{tokens} tokens a stream, prompt included in the time. Of {2 * options.pairs} greedy "
        f"answers to one stream, {same} were the same text on both sides."
    )


def _prompt(turn: int, streams: int, stream: bool, each: int) -> str:
    """Return a prompt whose first words nothing else has: a shared prefix would not be computed."""
    number = ((turn * 2 + (streams > 1)) * 2 + stream) * _SLOTS + each
    subject = _SUBJECTS[number % len(_SUBJECTS)]
    return (
        f"{number} notes on {subject}. Chapter {number + 7}: how {subject} came to this town, who "
        "brought them, and what the people made of it in the years that followed."
    )


def _body(prompt: str, tokens: int, *, stream: bool) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "max_tokens": tokens,
        "stream": stream,
        "temperature": 0,
        "top_p": 1,
        "top_k": 0,
        "min_p": 0,
        "seed": 1,
        "ignore_eos": True,
    }


def _text(reply: Reply, stream: bool, tokens: int) -> str:
    """Return an answer's text, once its length is known to be right."""
    if not stream:
        whole = reply.json()
        assert whole["usage"]["completion_tokens"] == tokens, "the answer has another length"
        return str(whole["choices"][0]["text"])
    usages = [chunk["usage"] for chunk in reply.chunks() if chunk.get("usage")]
    assert usages[-1]["completion_tokens"] == tokens, "the answer has another length"
    return reply.text()


def _tokens_per_s(replies: list[Reply], tokens: int) -> float:
    asked = min(reply.asked for reply in replies)
    ended = max(reply.times[-1] for reply in replies)
    return len(replies) * tokens / ((ended - asked) / 1e9)


def _last_first_ms(replies: list[Reply]) -> float:
    return max(reply.first_event_ms for reply in replies)
