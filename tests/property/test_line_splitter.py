"""The lines of a worker's output do not depend on how the pipe cuts it."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from emulator.autoscaling.line_splitter import LineSplitter

# Mostly the bytes that matter: line ends, carriage returns and halves of characters.
_BYTES = st.lists(
    st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"xyz", b" ", b"\xc3", b"\xa4", b"\xff"]),
    max_size=30,
).map(b"".join)


@given(_BYTES, st.lists(st.integers(0, 60), max_size=8))
def test_lines_are_the_same_however_the_blocks_are_cut(printed: bytes, cuts: list[int]) -> None:
    uncut, splitter = LineSplitter(8), LineSplitter(8)
    lines = uncut.feed(printed) + uncut.finish()
    bounds = [0, *sorted(cuts), len(printed)]
    cut_lines = []
    for start, end in itertools.pairwise(bounds):
        cut_lines += splitter.feed(printed[start:end])
    assert cut_lines + splitter.finish() == lines
