"""Cut bytes at random places, as a socket may deliver them."""

from __future__ import annotations

from hypothesis import strategies as st


def cut(wire: bytes, data: st.DataObject) -> list[bytes]:
    """Return parts that add up to `wire`; some may be empty."""
    places = data.draw(st.lists(st.integers(0, len(wire)), max_size=12).map(sorted))
    return [wire[start:end] for start, end in zip([0, *places], [*places, len(wire)], strict=True)]
