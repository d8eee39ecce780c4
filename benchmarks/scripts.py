"""Scripts for the scripted engine and for the stand-in of RKLLM's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.fake_rkllm import quoted, write_script

MODEL = "bench"
# A thousand different pieces, so that lost, repeated or swapped tokens are detected.
PIECES = [f" {number:03d}" for number in range(1000)]
_ENDLESS_CONTEXT = 2**31
# The maximum RKLLM context, for prompt and answer together.
RKLLM_CONTEXT = 16_384
# No output, and callbacks at full speed.
_RKLLM_ANSWER = "chatter none\nanswer\n  thread caller\n"
# More than a context can have.
_ENDLESS = 1_000_000


def write_burst(folder: Path, slots: int = 4) -> Path:
    """Write a script that generates endlessly at full speed; requests limit it by `max_tokens`."""
    path = folder / "burst.json"
    answer = {"pieces": PIECES, "repeat": -1}
    path.write_text(
        json.dumps({"answers": [answer], "slots": slots, "context_length": _ENDLESS_CONTEXT})
    )
    return path


def write_bursts(folder: Path, silences_ms: Mapping[str, float], slots: int) -> Path:
    """Write the burst for prompts with these words, each after a delay.

    During the delay, all requests of a load can arrive before the first token.
    """
    path = folder / "bursts.json"
    answers = [
        {"when": rf"\b{words}", "pieces": PIECES, "repeat": -1, "prefill_ms": silence_ms}
        for words, silence_ms in silences_ms.items()
    ]
    path.write_text(
        json.dumps({"answers": answers, "slots": slots, "context_length": _ENDLESS_CONTEXT})
    )
    return path


def burst_text(tokens: int) -> str:
    """Return the text of `tokens` tokens of the burst."""
    rounds, rest = divmod(tokens, len(PIECES))
    return "".join(PIECES) * rounds + "".join(PIECES[:rest])


def write_answer(folder: Path, words: str, *, gap_s: float = 0.0, slots: int = 4) -> Path:
    """Write a script that generates one answer, word by word."""
    path = folder / f"{gap_s:g}.answer.json"
    first, *others = words.split(" ")
    answer = {"pieces": [first, *(f" {word}" for word in others)], "delay_ms": gap_s * 1000}
    path.write_text(json.dumps({"answers": [answer], "slots": slots}))
    return path


def job_body(*, stream: bool = False, validated: bool = False) -> dict[str, Any]:
    """Return the body of a job for `/run` and `/runsync`, the same for both sides."""
    return {"input": {"prompt": "a prompt", "stream": stream, "enable_validation": validated}}


def write_stamps(folder: Path, tokens_per_s: float, slots: int = 4) -> Path:
    """Write the file that makes the scripted engine stamp its tokens (see `stamping`)."""
    path = folder / f"{tokens_per_s:g}.stamps.json"
    path.write_text(json.dumps({"tokens_per_s": tokens_per_s, "slots": slots}))
    return path


def write_rkllm_burst(folder: Path) -> Path:
    """Write the same burst as a "model file" of the stand-in; `max_tokens` limits it."""
    pieces = " ".join(map(quoted, PIECES))
    return write_script(
        folder / "burst.rkllm", f"{_RKLLM_ANSWER}  say {pieces} times={_ENDLESS // len(PIECES)}\n"
    )


def write_rkllm_stamps(folder: Path, tokens_per_s: float) -> Path:
    """Write the "model file" for time stamps at a steady pace, with an immediate first token."""
    stamp = r'say "@\{ns};"'
    return write_script(
        folder / f"{tokens_per_s:g}.stamps.rkllm",
        f"{_RKLLM_ANSWER}  {stamp}\n  {stamp} us={1e6 / tokens_per_s:.0f} times={_ENDLESS}\n",
    )
