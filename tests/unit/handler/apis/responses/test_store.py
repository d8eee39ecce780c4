"""Stored responses: limited, and read with those before them."""

from __future__ import annotations

from typing import Any

import pytest

from handler.apis.responses.store import MAX_CHAIN, ResponseStore
from handler.errors import InvalidRequest, NotFound


def add(store: ResponseStore, name: str, previous: str | None = None, text: str = "") -> None:
    output: list[dict[str, Any]] = [{"out": name + text}]
    store.add({"id": name, "output": output}, [{"in": name}], previous)


async def test_conversation_has_input_and_output_of_all_turns_in_order() -> None:
    store = ResponseStore()
    add(store, "a")
    add(store, "b", "a")
    add(store, "other")
    assert await store.conversation("b") == [{"in": "a"}, {"out": "a"}, {"in": "b"}, {"out": "b"}]
    assert await store.conversation(None) == []


async def test_oldest_responses_are_removed_for_new_ones() -> None:
    store = ResponseStore(max_responses=2)
    for name in "abc":
        add(store, name)
    with pytest.raises(NotFound, match='no response "a"'):
        await store.get("a")
    assert (await store.get("c")).items == b'[{"in":"c"}]'


async def test_size_of_all_responses_is_limited() -> None:
    store = ResponseStore(max_bytes=2_000)
    for name in "abc":
        add(store, name, text="x" * 900)
    with pytest.raises(NotFound):
        await store.get("a")
    await store.remove("b")
    await store.remove("c")
    add(store, "d", text="x" * 1_800)
    assert await store.get("d")


async def test_missing_turn_is_an_error_of_the_parameter() -> None:
    store = ResponseStore()
    add(store, "b", "a")
    with pytest.raises(InvalidRequest, match='no response "a"') as caught:
        await store.conversation("b")
    assert caught.value.param == "previous_response_id"


async def test_length_of_a_conversation_is_limited() -> None:
    store = ResponseStore()
    for number in range(MAX_CHAIN + 1):
        add(store, str(number), str(number - 1) if number else None)
    with pytest.raises(InvalidRequest, match=f"more than {MAX_CHAIN} responses"):
        await store.conversation(str(MAX_CHAIN))
