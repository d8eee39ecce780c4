"""What counts as the same wording, and that nothing else is taken for it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handler.errors import InvalidRequest
from handler.parse_cache import ParseCache
from handler.sampling import JOB_DEFAULTS, SamplingDefaults, read_sampling

MATTERS = frozenset({"a", "b"})


class Reader:
    """Reads by counting."""

    def __init__(self) -> None:
        self.memo: ParseCache[int] = ParseCache()
        self.times = 0

    def read(self, body: dict[str, Any], context: object = None) -> int:
        return self.memo.get(body, MATTERS, self._read, context)

    def _read(self) -> int:
        self.times += 1
        return self.times


def test_the_same_wording_is_read_once_whatever_else_there_is() -> None:
    reader = Reader()
    assert reader.read({"a": [1, {"x": None}], "prompt": "one"}) == 1
    assert reader.read({"prompt": "two", "a": [1, {"x": None}], "messages": []}) == 1
    assert reader.times == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1}, {"a": "1"}),
        ({"a": 0.0}, {"a": -0.0}),
        ({"a": None}, {}),
        ({"a": math.nan}, {"a": None}),
        ({"a": "x', 'b': 'y"}, {"a": "x", "b": "y"}),
    ],
)
def test_what_only_looks_alike_is_read_anew(first: Any, second: Any) -> None:
    reader = Reader()
    assert (reader.read(first), reader.read(second)) == (1, 2)


def test_what_else_it_depends_on_tells_them_apart() -> None:
    reader = Reader()
    assert [reader.read({"a": 1}, context) for context in ("x", "y", "x")] == [1, 2, 1]


def test_neither_long_wordings_nor_too_many_are_kept() -> None:
    reader = Reader()
    assert [reader.read({"a": "x" * 5_000}) for _ in range(2)] == [1, 2]
    for number in range(1_000):
        reader.read({"a": number})
    assert reader.read({"a": 0}) == 1_003


class _Unwritten:
    """Fails a test that has it written out."""

    def __repr__(self) -> str:
        raise AssertionError


def test_what_is_long_is_not_even_written_out() -> None:
    reader = Reader()
    assert [reader.read({"a": [_Unwritten()] * 5_000}) for _ in range(2)] == [1, 2]


def test_a_number_that_python_does_not_write_is_read_each_time() -> None:
    with pytest.raises(InvalidRequest, match="seed must be a whole number"):
        read_sampling({"seed": 10**5_000}, JOB_DEFAULTS)


def test_what_is_nested_deeper_than_python_goes_is_read_each_time() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    reader = Reader()
    assert [reader.read({"a": deep}) for _ in range(2)] == [1, 2]
    while deep:
        deep = deep.pop()


def test_what_is_wrong_is_told_each_time() -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="temperature must be a number from 0 to 2, got 3"):
            read_sampling({"temperature": 3}, JOB_DEFAULTS)
    with pytest.raises(InvalidRequest, match=r"got NaN|got nan|got null"):
        read_sampling({"temperature": math.nan}, JOB_DEFAULTS)


_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-1, 2), st.sampled_from([0.0, 0.5, 1.0, "1", ""])
)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["temperature", "top_p", "seed", "stop", "stream", "echo"]), _VALUES
        ),
        min_size=2,
        max_size=6,
    )
)
def test_a_body_is_read_as_it_would_be_alone(bodies: list[dict[str, Any]]) -> None:
    # R8-R12, R16: whatever was asked before.
    def outcome(body: dict[str, Any], defaults: SamplingDefaults) -> Any:
        try:
            return read_sampling(body, defaults)
        except InvalidRequest as error:
            return error.message

    for number, body in enumerate(bodies):
        # Nobody has asked with these defaults.
        fresh = replace(JOB_DEFAULTS, max_tokens=id(body) + number)
        sampling = outcome(body, JOB_DEFAULTS)
        alone = outcome(body, fresh)
        if isinstance(alone, str):
            assert sampling == alone
        else:
            assert sampling[1:] == alone[1:]
            assert replace(sampling[0], max_tokens=None) == replace(alone[0], max_tokens=None)
