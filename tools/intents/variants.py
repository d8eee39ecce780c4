"""Generate unlabelled variants of the prompts."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence


def variants(prompts: Sequence[str], rounds: int) -> list[str]:
    """Return `rounds` variants of each prompt, which the teacher labels."""
    words = [prompt.split() for prompt in prompts]
    sentences = [re.split(r"(?<=[.!?])\s+|\n+", prompt) for prompt in prompts]
    return [
        _noisy(_variant(number, prompts, words, sentences))
        for _ in range(rounds)
        for number in range(len(prompts))
    ]


def _variant(
    number: int, prompts: Sequence[str], words: list[list[str]], sentences: list[list[str]]
) -> str:
    own_words, other_words = words[number], random.choice(words)
    match random.choices(range(6), (20, 25, 15, 15, 10, 15))[0]:
        case 0:
            return " ".join(word for word in own_words if random.random() > 0.15) or prompts[number]
        case 1:
            start, other_start = (
                random.randrange(len(own_words)),
                random.randrange(len(other_words)),
            )
            end, other_end = start + random.randint(1, 4), other_start + random.randint(1, 4)
            return " ".join(
                own_words[:start] + other_words[other_start:other_end] + own_words[end:]
            )
        case 2:
            kept_count, other_start = (
                random.randint(1, len(own_words)),
                random.randrange(len(other_words)),
            )
            return " ".join(own_words[:kept_count] + other_words[other_start:])
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
        start = random.randrange(len(text) - 1)
        text = text[:start] + text[start + 1] + text[start] + text[start + 2 :]
    return text
