"""Choose the part of llama.cpp's key-value cache that a prompt is computed in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from engine.request import Chat, RenderedPrompt

# Cost of evicting a character from a slot, relative to computing one. Higher than 1, because the
# chat that the slot belongs to may continue.
_EVICTION_WEIGHT = 4


@dataclass(slots=True)
class CacheSlot:
    """One slot of the cache: its content, which is the last prompt and its answer.

    `history_length` is how much of that the chat's next prompt begins with, in characters or ids.
    `adapter` is the LoRA adapter of the last prompt. `is_reusable` is False from the change to
    another adapter until a prompt has been computed with it: keys and values of one adapter are
    wrong for another one.
    """

    number: int
    content: RenderedPrompt = ""
    history_length: int = 0
    adapter: str | None = None
    is_reusable: bool = True

    def record(
        self, prompt: RenderedPrompt, answer: str, history_length: int | None = None
    ) -> None:
        """Record what was computed in this slot; the history is the whole prompt by default."""
        self.content = prompt + answer if isinstance(prompt, str) else prompt
        self.history_length = len(prompt) if history_length is None else history_length
        self.is_reusable = True

    def switch_adapter(self, adapter: str | None) -> None:
        """Drop the content if it was computed with another adapter."""
        if adapter != self.adapter:
            self.adapter, self.is_reusable = adapter, False
            self.content, self.history_length = "", 0


class CacheSlots:
    """Assigns each prompt the slot with the most reusable content and the least to evict.

    A chat's next prompt has no reasoning in it, and perhaps not the mark that opens it, so it
    begins with the messages of the prompt before, and not always with the end of that prompt.

    llama.cpp's own choice is the slot with the longest common prefix. Two chats with the same
    system prompt then take each other's slot alternately, and each of their turns is computed from
    the end of the system prompt on. Here a chat continues in its own slot. A new chat takes the
    least recently used slot, unless another slot shares so much with it that the evicted content
    costs less. Lengths are compared as text; llama.cpp decides what it actually reuses.
    Thread-safe.
    """

    def __init__(self, count: int) -> None:
        # Least recently used first.
        self._free = [CacheSlot(number) for number in range(count)]
        self._lock = threading.Lock()

    @contextmanager
    def acquire(self, prompt: RenderedPrompt, adapter: str | None = None) -> Iterator[CacheSlot]:
        """Reserve a slot for a prompt; the caller records the result with `CacheSlot.record`.

        `adapter` is the LoRA adapter that computes the prompt.

        Raises:
            IndexError: no slot is free.
        """
        with self._lock:
            slot = self._free.pop(self._choose(prompt, adapter))
        slot.switch_adapter(adapter)
        try:
            yield slot
        finally:
            with self._lock:
                self._free.append(slot)

    def _choose(self, prompt: RenderedPrompt, adapter: str | None) -> int:
        best, lowest_cost = 0, float("inf")
        for index, slot in enumerate(self._free):
            is_same_adapter = slot.adapter == adapter
            shared = common_prefix_length(prompt, slot.content) if is_same_adapter else 0
            lost = len(slot.content) - shared
            if index == 0 or (slot.content and is_same_adapter and shared >= slot.history_length):
                # The least recently used slot is evicted next anyway; or the slot is this chat's.
                lost = 0
            if (cost := len(prompt) - shared + _EVICTION_WEIGHT * lost) < lowest_cost:
                best, lowest_cost = index, cost
        return best


def common_prefix_length(one: RenderedPrompt, other: RenderedPrompt) -> int:
    """Return the length of the common prefix; text and token ids have none."""
    if type(one) is not type(other):
        return 0
    low, high = 0, min(len(one), len(other))
    # Binary search: comparing slices runs in C, comparing single characters would not.
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def find_history_length(chat: Chat, prompt: str) -> int:
    """Return where the messages of a chat end in its rendered prompt, in characters.

    What follows them opens the answer. It depends on the template's variables, and the template
    renders it in another way when the answer is a message itself.
    """
    messages = chat.messages[:-1] if chat.continues_last else chat.messages
    content = messages[-1].content.strip()
    start = prompt.rfind(content) if content else -1
    return len(prompt) if start < 0 else start + len(content)
