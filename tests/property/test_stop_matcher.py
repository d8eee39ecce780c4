"""The automaton against an oracle that looks at every character afresh."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from engine.stops import StopMatcher

# Few letters, so that stops overlap, nest and repeat; one of them outside the BMP.
LETTERS = "ab😀"
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=6), min_size=1, max_size=16)
PIECES = st.lists(st.text(LETTERS, max_size=8), max_size=20)


@dataclass
class Oracle:
    """Reads one character at a time and compares whole strings, nothing cleverer."""

    stops: list[str]
    include: bool
    seen: str = ""
    matched: str | None = None

    def read(self, text: str) -> None:
        for char in text:
            if self.matched is not None:
                return
            self.seen += char
            hits = [stop for stop in self.stops if self.seen.endswith(stop)]
            self.matched = max(hits, key=len) if hits else None

    def visible(self) -> str:
        """All that may be shown by now: everything but what may still become a stop."""
        if self.matched is not None:
            hidden = 0 if self.include else len(self.matched)
        else:
            prefixes = [stop[:end] for stop in self.stops for end in range(1, len(stop))]
            hidden = max((len(p) for p in prefixes if self.seen.endswith(p)), default=0)
        return self.seen[: len(self.seen) - hidden]


@given(pieces=PIECES, stops=STOPS, include=st.booleans())
def test_shows_exactly_what_the_oracle_allows_after_every_piece(
    pieces: list[str], stops: list[str], include: bool
) -> None:
    # R11, R12, R26: nothing of a stop that then matches, and everything else without delay.
    matcher, oracle = StopMatcher(stops, include_stop_str=include), Oracle(stops, include)
    shown = ""
    for piece in pieces:
        shown += matcher.push(piece)
        oracle.read(piece)
        assert matcher.matched == oracle.matched
        assert shown == oracle.visible()
        if matcher.matched is not None:
            assert matcher.flush() == ""
            return
    assert shown + matcher.flush() == oracle.seen


@given(pieces=PIECES, stops=STOPS, include=st.booleans())
def test_outcome_does_not_depend_on_how_the_text_was_cut(
    pieces: list[str], stops: list[str], include: bool
) -> None:
    def outcome(cut: list[str]) -> tuple[str, str | None]:
        matcher, text = StopMatcher(stops, include_stop_str=include), ""
        for piece in cut:
            text += matcher.push(piece)
            if matcher.matched is not None:
                return text, matcher.matched
        return text + matcher.flush(), None

    text = "".join(pieces)
    assert outcome(pieces) == outcome([text]) == outcome(list(text))
