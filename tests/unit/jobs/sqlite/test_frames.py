"""Frames between a journal and its store process."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.sqlite.frames import MAX_FRAME_BYTES, build_decoder, encode
from tests.cutting import cut

MESSAGE = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20) | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner),
    max_leaves=8,
)


@given(messages=st.lists(MESSAGE, max_size=6), data=st.data())
def test_decoder_returns_messages_for_any_split_of_the_stream(
    messages: list[Any], data: st.DataObject
) -> None:
    decoder = build_decoder()
    parts = cut(b"".join(map(encode, messages)), data)
    assert [message for part in parts for message in decoder.feed(part)] == messages


def test_decoder_refuses_a_frame_that_is_too_long() -> None:
    with pytest.raises(ValueError, match="cannot be right"):
        list(build_decoder().feed(struct.pack(">I", MAX_FRAME_BYTES + 1)))
