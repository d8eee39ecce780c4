"""R11, R26: where an answer ends, and what may be shown before it is known."""

import pytest

from engine.stops import StopMatcher


def shown(pieces: list[str], stops: list[str], *, include: bool = False) -> list[str]:
    """What each piece lets through, and at the end what was held back."""
    matcher = StopMatcher(stops, include_stop_str=include)
    out = []
    for piece in pieces:
        out.append(matcher.push(piece))
        if matcher.matched is not None:
            return out
    return [*out, matcher.flush()]


def test_text_without_a_stop_goes_through_as_it_came() -> None:
    assert shown(["good ", "bye ", "world"], ["END"]) == ["good ", "bye ", "world", ""]


def test_stop_inside_one_piece() -> None:
    assert shown(["one END two"], ["END"]) == ["one "]


def test_stop_across_pieces_never_shows_its_prefix() -> None:
    assert shown(["one E", "N", "D two"], ["END"]) == ["one ", "", ""]


def test_prefix_that_comes_to_nothing_is_released_at_once() -> None:
    assert shown(["one E", "N", "X"], ["END"]) == ["one ", "", "ENX", ""]


def test_prefix_at_the_end_of_the_stream_is_released_by_flush() -> None:
    assert shown(["one EN"], ["END"]) == ["one ", "EN"]


def test_only_as_much_is_held_as_can_still_match() -> None:
    assert shown(["aab", "a"], ["aabaac"]) == ["", "", "aaba"]
    assert shown(["aab", "ab"], ["aabaac"]) == ["", "aabab", ""]


def test_matched_stop_is_kept_on_request() -> None:
    # R12
    assert shown(["one EN", "D two"], ["END"], include=True) == ["one ", "END"]


def test_earliest_completing_match_wins_over_one_that_began_before() -> None:
    matcher = StopMatcher(["abcd", "bc"])
    assert matcher.push("xabcd") == "xa"
    assert matcher.matched == "bc"


def test_longest_match_wins_on_a_tie() -> None:
    matcher = StopMatcher(["c", "bc", "abc"])
    assert matcher.push("xabc") == "x"
    assert matcher.matched == "abc"


def test_match_by_falling_back_to_a_shorter_prefix() -> None:
    matcher = StopMatcher(["aaab"])
    assert [matcher.push(char) for char in "aaaab"] == ["", "", "", "a", ""]
    assert matcher.matched == "aaab"


def test_flush_begins_anew() -> None:
    matcher = StopMatcher(["END"])
    matcher.push("EN")
    assert matcher.flush() == "EN"
    assert matcher.push("D") == "D"
    assert matcher.matched is None


@pytest.mark.parametrize("stops", [[""], ["a", ""]])
def test_empty_stop_is_refused(stops: list[str]) -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        StopMatcher(stops)
