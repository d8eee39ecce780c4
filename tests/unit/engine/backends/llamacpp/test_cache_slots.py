"""The choice of a cache slot: most reuse at the least loss for other chats."""

from __future__ import annotations

import itertools
import operator
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.llamacpp.cache_slots import (
    CacheSlots,
    common_prefix_length,
    find_history_length,
)
from engine.request import Chat, Message, RenderedPrompt

SYSTEM = "You are helpful. "


def used(slots: CacheSlots, prompt: RenderedPrompt, answer: str = "") -> int:
    """Use a slot for a prompt and its answer; return the slot's number."""
    with slots.acquire(prompt) as slot:
        slot.record(prompt, answer)
    return slot.number


def turns(name: str, count: int) -> str:
    """Return a chat's prompt after some turns; each answer is `yes`."""
    questions = [f"{name}{turn} asks a question. " for turn in range(count)]
    return SYSTEM + "yes ".join(questions)


def test_chat_continues_in_its_slot() -> None:
    slots = CacheSlots(4)
    [first, *rest] = [used(slots, turns("a", turn), "yes ") for turn in range(1, 11)]
    assert rest == [first] * 9


def test_chats_with_one_system_prompt_keep_their_slots() -> None:
    slots = CacheSlots(4)
    slots_by_turn = [
        [used(slots, turns(name, turn), "yes ") for name in "abcd"] for turn in range(1, 11)
    ]
    assert len(set(slots_by_turn[0])) == 4
    assert slots_by_turn == [slots_by_turn[0]] * 10


def test_chats_that_reason_keep_their_slots() -> None:
    # The next prompt has neither the reasoning nor the mark that opened it.
    slots = CacheSlots(4)
    long = SYSTEM * 20
    numbers: dict[str, list[int]] = {name: [] for name in "abcd"}
    for turn in range(1, 6):
        # The least recently used slot is never the chat's own.
        for name in "abcd" if turn % 2 else "dcba":
            history = long + "".join(f"{name}{each} asks. Oslo." for each in range(turn))
            history = history.removesuffix("Oslo.")
            with slots.acquire(history + "<think>") as slot:
                slot.record(history + "<think>", "hm " * 50 + "</think>Oslo.", len(history))
            numbers[name].append(slot.number)
    assert sorted(each[0] for each in numbers.values()) == [0, 1, 2, 3]
    assert all(len(set(each)) == 1 for each in numbers.values())


@pytest.mark.parametrize(
    ("content", "continues", "prompt", "history"),
    [
        ("Hi ", False, "system\nuser: Hi\nassistant: <think>\n", "system\nuser: Hi"),
        ("", False, "user: \nassistant: ", "user: \nassistant: "),
        ("Hi", True, "user: Hi\nassistant: Once", "user: Hi"),
    ],
)
def test_history_ends_with_the_last_message(
    content: str, continues: bool, prompt: str, history: str
) -> None:
    messages = (Message("user", content), *([Message("assistant", "Once")] if continues else []))
    chat = Chat(messages, continues_last=continues)
    assert find_history_length(chat, prompt) == len(history)


def test_new_chat_takes_the_least_recently_used_slot() -> None:
    slots = CacheSlots(2)
    a, b = used(slots, turns("a", 3)), used(slots, turns("b", 3))
    assert used(slots, turns("c", 1)) == a
    assert used(slots, turns("d", 1)) == b
    assert used(slots, turns("c", 2)) == a


def test_repeated_prompt_evicts_only_its_answer() -> None:
    slots = CacheSlots(3)
    prompt = turns("a", 1)
    first = used(slots, prompt, "a long answer " * 100)
    assert used(slots, prompt, "another") == first


def test_long_common_prefix_outweighs_a_short_eviction() -> None:
    slots = CacheSlots(3)
    long = "Read this: " + "word " * 1000
    first = used(slots, long + "What is it?", "A lot.")
    assert used(slots, long + "Who wrote it?") == first
    # But it does not outweigh a long one, whose chat may continue.
    assert used(slots, long + "Well, " + "more " * 1000) == first
    assert used(slots, long + "Where?") != first


def test_token_ids_are_compared_with_token_ids() -> None:
    slots = CacheSlots(3)
    ids = tuple(range(50))
    first, text = used(slots, ids), used(slots, "0 1 2")
    assert used(slots, (*ids, 7, 8)) == first
    assert used(slots, "0 1 2 3") == text


def test_failed_run_changes_no_slot() -> None:
    slots = CacheSlots(2)
    first = used(slots, turns("a", 3))
    with slots.acquire("refused"):
        pass
    assert used(slots, turns("a", 4)) == first


def test_concurrent_prompts_have_separate_slots() -> None:
    slots = CacheSlots(3)
    with slots.acquire("x") as one, slots.acquire("x") as two, slots.acquire("x") as three:
        assert {one.number, two.number, three.number} == {0, 1, 2}
        with pytest.raises(IndexError), slots.acquire("x"):
            pytest.fail("there are three")
    assert used(slots, "x") in {0, 1, 2}


def test_slots_are_thread_safe() -> None:
    slots = CacheSlots(4)
    held: set[int] = set()
    shared: list[int] = []

    def use() -> None:
        for at in range(200):
            with slots.acquire(f"{at}") as slot:
                if slot.number in held:
                    shared.append(slot.number)
                held.add(slot.number)
                slot.record(f"{at}", "")
                held.discard(slot.number)

    users = [threading.Thread(target=use) for _ in range(4)]
    for user in users:
        user.start()
    for user in users:
        user.join(20)
    assert shared == []


@given(st.text("ab"), st.text("ab"), st.text("ab"))
def test_common_prefix_length(start: str, one: str, other: str) -> None:
    first, second = start + one, start + other
    same = itertools.takewhile(bool, map(operator.eq, first, second))
    assert common_prefix_length(first, second) == len(list(same))
    assert common_prefix_length(
        tuple(map(ord, first)), tuple(map(ord, second))
    ) == common_prefix_length(first, second)
    assert common_prefix_length(first, tuple(map(ord, first))) == 0


def test_content_of_another_adapter_is_not_reusable() -> None:
    slots = CacheSlots(1)
    for adapter in ("one", None, "two", "one"):
        with slots.acquire(SYSTEM, adapter) as slot:
            assert not slot.is_reusable
            slot.record(SYSTEM, "yes")
        with slots.acquire(SYSTEM, adapter) as slot:
            assert slot.is_reusable


def test_content_stays_unusable_after_a_failed_prompt() -> None:
    slots = CacheSlots(1)
    used(slots, SYSTEM)
    for adapter in ("one", "one", None):
        # Nothing is recorded, so either adapter may have computed the content.
        with slots.acquire(SYSTEM, adapter) as slot:
            assert not slot.is_reusable


def test_chat_prefers_the_slot_of_its_adapter() -> None:
    slots = CacheSlots(3)
    numbers: dict[str | None, list[int]] = {None: [], "one": [], "two": []}
    for turn in range(1, 6):
        for adapter in (None, "one", "two") if turn % 2 else ("two", "one", None):
            prompt = turns("a", turn)
            with slots.acquire(prompt, adapter) as slot:
                slot.record(prompt, "yes ")
            numbers[adapter].append(slot.number)
    assert [len(set(each)) for each in numbers.values()] == [1, 1, 1]
