"""R27 for any text, any cut and any bytes, with and without stop strings."""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from common.utf8 import Utf8Decoder
from engine.output import Delta
from engine.request import SamplingParams
from engine.runs.generation import Generation

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@given(text=TEXT, places=st.lists(st.integers(0, 200), max_size=12))
@example(text="👩‍👩‍👧‍👦你好e\u0301", places=list(range(40)))
def test_any_cut_decodes_to_the_text_and_shows_no_half_character(
    text: str, places: list[int]
) -> None:
    decode = Utf8Decoder().decode
    parts = [decode(piece) for piece in cut(text.encode(), places)]
    assert "".join(parts) == text
    assert sum(part.count("\ufffd") for part in parts) == text.count("\ufffd")


@given(junk=st.binary(max_size=8), text=TEXT)
def test_text_after_any_junk_survives(junk: bytes, text: str) -> None:
    decode = Utf8Decoder().decode
    # A line feed ends whatever character the junk may have begun.
    assert (decode(junk) + decode(b"\n" + text.encode())).endswith("\n" + text)


@given(
    before=TEXT,
    stop=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4),
    places=st.lists(st.integers(0, 200), max_size=12),
)
@example(before="😀", stop="🎉🎉", places=list(range(12)))
def test_stop_string_matches_wherever_its_bytes_are_cut(
    before: str, stop: str, places: list[int]
) -> None:
    # R11, R27 together, through the whole path of a piece.
    deltas: list[Delta] = []
    generation = Generation(SamplingParams(stop=(stop,)), deltas.append)
    text = before + stop
    done = [generation.on_piece(piece, 1, None) for piece in cut((text + "late").encode(), places)]
    assert done[-1]
    assert generation.stop_reason == stop
    assert "".join(delta.text for delta in deltas) == text[: text.index(stop)]
