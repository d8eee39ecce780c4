"""Which part of llama.cpp's cache a prompt is computed in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from engine.request import RenderedPrompt

# What a slot loses, somebody may come back for: it is worth so many times what is saved at once.
_EVICTION_WEIGHT = 4


@dataclass(slots=True)
class CacheSlot:
    """A part of the cache: the prompt it was used for last, and all that is in it by now."""

    number: int
    prompt: RenderedPrompt = ""
    content: RenderedPrompt = ""

    def holds(self, prompt: RenderedPrompt, answer: str) -> None:
        """Remember what was computed in it."""
        self.prompt = prompt
        self.content = prompt + answer if isinstance(prompt, str) else prompt


class CacheSlots:
    """Finds each prompt the slot from which most can be reused at the least loss.

    llama.cpp's own choice is the slot whose beginning is the most alike, so two chats with one
    system prompt take each other's slot in turns, and each of their turns is computed from the
    system prompt on. Here a chat goes on where it was; a new one takes the slot that was used the
    longest ago, unless so much of another's can be kept that it is worth what is lost there.
    Lengths are compared as text: what is really reused is llama.cpp's business. Any thread may use
    it.
    """

    def __init__(self, count: int) -> None:
        # The one that was used the longest ago comes first.
        self._free = [CacheSlot(number) for number in range(count)]
        self._lock = threading.Lock()

    @contextmanager
    def take(self, prompt: RenderedPrompt) -> Iterator[CacheSlot]:
        """Hold a slot for a prompt; whoever holds it says what it `holds` in the end.

        Raises:
            IndexError: all of them are held.
        """
        with self._lock:
            slot = self._free.pop(self._best(prompt))
        try:
            yield slot
        finally:
            with self._lock:
                self._free.append(slot)

    def _best(self, prompt: RenderedPrompt) -> int:
        chosen, least = 0, float("inf")
        for at, slot in enumerate(self._free):
            same = common_prefix_length(prompt, slot.content)
            lost = len(slot.content) - same
            if at == 0 or (slot.content and same >= len(slot.prompt)):
                # Its turn has come to be lost; or it is this chat's own.
                lost = 0
            if (price := len(prompt) - same + _EVICTION_WEIGHT * lost) < least:
                chosen, least = at, price
        return chosen


def common_prefix_length(one: RenderedPrompt, other: RenderedPrompt) -> int:
    """Return for how long two prompts are the same; text and token ids never are."""
    if type(one) is not type(other):
        return 0
    low, high = 0, min(len(one), len(other))
    # By halves: slices are compared in C, characters would not be.
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
