"""Output items and their events: in order and complete, in any division of the reply."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.reply.parts import CallArguments, CallStart, Part, ReasoningPart, TextPart
from handler.apis.responses.output_items import Event, OutputBuilder

_TEXTS = st.text(min_size=1, max_size=5)
_CALLS = st.tuples(st.sampled_from(["add", "patch"]), st.lists(_TEXTS, max_size=3))
_GROUPS = st.one_of(
    st.lists(_TEXTS.map(ReasoningPart), min_size=1, max_size=3),
    st.lists(_TEXTS.map(lambda text: TextPart(text, 0)), min_size=1, max_size=3),
    _CALLS.map(lambda call: [CallStart(call[0], 0, "c"), *map(CallArguments, call[1])]),
)
REPLIES = st.lists(_GROUPS, max_size=5).map(lambda groups: [part for g in groups for part in g])


def build(parts: list[Part]) -> tuple[OutputBuilder, list[Event]]:
    builder = OutputBuilder(frozenset({"patch"}), "resp_1")
    events = [event for part in parts for event in builder.add(part)]
    return builder, [*events, *builder.close()]


@given(REPLIES)
def test_items_have_all_text_of_the_reply_in_order(parts: list[Part]) -> None:
    builder, _ = build(parts)
    texts = [part.text for part in parts if not isinstance(part, CallStart)]
    assert "".join("".join(item.texts) for item in builder.items) == "".join(texts)
    names = [part.name for part in parts if isinstance(part, CallStart)]
    assert [item.name for item in builder.items if item.name] == names


@given(REPLIES)
def test_events_of_each_item_are_added_delta_done_without_overlap(parts: list[Part]) -> None:
    builder, events = build(parts)
    open_index: int | None = None
    deltas: dict[int, str] = {}
    done: dict[int, Any] = {}
    for kind, members in events:
        index = members["output_index"]
        if kind == "response.output_item.added":
            assert open_index is None
            assert index == len(done)
            open_index = index
        assert index == open_index, kind
        if kind.endswith(".delta"):
            deltas[index] = deltas.get(index, "") + members["delta"]
        if kind == "response.output_item.done":
            done[index] = members["item"]
            open_index = None
    assert open_index is None
    assert [done[item.index] for item in builder.items] == [item.encode() for item in builder.items]
    for item in builder.items:
        assert deltas.get(item.index, "") == item.text


@given(REPLIES)
def test_every_started_part_is_ended(parts: list[Part]) -> None:
    _, events = build(parts)
    counts = Counter(kind for kind, _ in events)
    for name in ("output_item", "content_part"):
        assert counts[f"response.{name}.added"] == counts[f"response.{name}.done"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"input": "a\\nb"}', "a\nb"),
        ('{"input": 3}', '{"input": 3}'),
        ('{"other": "a"}', '{"other": "a"}'),
        ('{"input": "cut', '{"input": "cut'),
        ("[]", "[]"),
        ("", ""),
    ],
)
def test_input_of_a_custom_tool_is_the_text_inside_the_arguments(
    arguments: str, expected: str
) -> None:
    builder, _ = build([CallStart("patch", 0, "c"), CallArguments(arguments)])
    assert builder.items[0].encode()["input"] == expected


def test_interrupted_item_has_its_status() -> None:
    builder = OutputBuilder(frozenset(), "resp_1")
    events = [*builder.add(TextPart("half", 0)), *builder.close("incomplete")]
    kind, members = events[-1]
    assert (kind, members["item"]["status"]) == ("response.output_item.done", "incomplete")
