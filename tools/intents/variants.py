"""Texts like the prompts, which nobody has labelled."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence


def variants(prompts: Sequence[str], times: int) -> list[str]:
    """Return texts like the prompts; what they are about is the teacher's to say."""
    words = [prompt.split() for prompt in prompts]
    sentences = [re.split(r"(?<=[.!?])\s+|\n+", prompt) for prompt in prompts]
    return [
        _noisy(_variant(number, prompts, words, sentences))
        for _ in range(times)
        for number in range(len(prompts))
    ]


def _variant(
    number: int, prompts: Sequence[str], words: list[list[str]], sentences: list[list[str]]
) -> str:
    own, other = words[number], random.choice(words)
    match random.choices(range(6), (20, 25, 15, 15, 10, 15))[0]:
        case 0:
            return " ".join(word for word in own if random.random() > 0.15) or prompts[number]
        case 1:
            at, start = random.randrange(len(own)), random.randrange(len(other))
            end, stop = at + random.randint(1, 4), start + random.randint(1, 4)
            return " ".join(own[:at] + other[start:stop] + own[end:])
        case 2:
            kept, start = random.randint(1, len(own)), random.randrange(len(other))
            return " ".join(own[:kept] + other[start:])
        case 3:
            pair = [prompts[number], random.choice(random.choice(sentences))]
            random.shuffle(pair)
            return " ".join(pair)
        case 4:
            return random.choice(sentences[number])
        case _:
            return prompts[number]


def _noisy(text: str) -> str:
    if random.random() < 0.2:
        text = text.lower()
    if random.random() < 0.2:
        text = text.rstrip("?.!")
    if random.random() < 0.1 and len(text) > 5:
        at = random.randrange(len(text) - 1)
        text = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    return text
