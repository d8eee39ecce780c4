"""Frames are decoded to the encoded messages, however the socket splits them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine.hosts.frames import build_decoder, encode
from tests.cutting import cut

MESSAGE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(messages=st.lists(MESSAGE, max_size=8), data=st.data())
def test_any_messages_in_any_cut(messages: list[Any], data: st.DataObject) -> None:
    decoder = build_decoder()
    parts = cut(b"".join(map(encode, messages)), data)
    assert [message for part in parts for message in decoder.feed(part)] == messages


@given(messages=st.lists(MESSAGE, min_size=1, max_size=4))
def test_messages_are_delivered_with_their_last_byte(messages: list[Any]) -> None:
    decoder = build_decoder()
    for message in messages:
        wire = encode(message)
        early = [got for byte in wire[:-1] for got in decoder.feed(bytes([byte]))]
        assert early == []
        assert list(decoder.feed(wire[-1:])) == [message]
