"""What the scripted engine is given to say."""

from __future__ import annotations

import json
from pathlib import Path

MODEL = "bench"
# A piece for each of a thousand numbers, so that a lost, doubled or swapped token shows.
PIECES = [f" {number:03d}" for number in range(1000)]
_ENDLESS_CONTEXT = 2**31


def write_burst(folder: Path, slots: int = 4) -> Path:
    """Write a script that talks for ever, as fast as it can; requests end it by `max_tokens`."""
    path = folder / "burst.json"
    answer = {"pieces": PIECES, "repeat": -1}
    path.write_text(
        json.dumps({"answers": [answer], "slots": slots, "context_length": _ENDLESS_CONTEXT})
    )
    return path


def burst_text(tokens: int) -> str:
    """Return what `tokens` tokens of the burst say."""
    rounds, rest = divmod(tokens, len(PIECES))
    return "".join(PIECES) * rounds + "".join(PIECES[:rest])


def write_stamps(folder: Path, tokens_per_s: float) -> Path:
    """Write the file that makes the scripted engine stamp its tokens (see `stamping`)."""
    path = folder / f"{tokens_per_s:g}.stamps.json"
    path.write_text(json.dumps({"tokens_per_s": tokens_per_s}))
    return path
