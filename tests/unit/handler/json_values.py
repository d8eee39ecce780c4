"""Strategies for arbitrary JSON values."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st


def json_values() -> st.SearchStrategy[Any]:
    """Half surrogate pairs, NaN and huge numbers included."""
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters())
    return st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.text(st.characters(), max_size=5), inner, max_size=4)
        ),
        max_leaves=8,
    )
