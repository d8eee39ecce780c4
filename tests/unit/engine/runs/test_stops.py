"""R11, R26: where an answer ends, and which text may be sent before that is known."""

import pytest

from engine.runs.stops import StopMatcher


def push_all(pieces: list[str], stops: list[str], *, include: bool = False) -> list[str]:
    """Return the text released by each piece, and at the end the held-back text."""
    matcher = StopMatcher(stops, include_stop_str=include)
    out = []
    for piece in pieces:
        out.append(matcher.push(piece))
        if matcher.matched is not None:
            return out
    return [*out, matcher.flush()]


def test_text_without_a_stop_is_unchanged() -> None:
    assert push_all(["good ", "bye ", "world"], ["END"]) == ["good ", "bye ", "world", ""]


def test_stop_inside_one_piece() -> None:
    assert push_all(["one END two"], ["END"]) == ["one "]


def test_prefix_of_a_stop_across_pieces_is_held_back() -> None:
    assert push_all(["one E", "N", "D two"], ["END"]) == ["one ", "", ""]


def test_prefix_that_cannot_match_is_released_immediately() -> None:
    assert push_all(["one E", "N", "X"], ["END"]) == ["one ", "", "ENX", ""]


def test_prefix_at_the_end_of_the_stream_is_released_by_flush() -> None:
    assert push_all(["one EN"], ["END"]) == ["one ", "EN"]


def test_only_text_that_can_still_match_is_held_back() -> None:
    assert push_all(["aab", "a"], ["aabaac"]) == ["", "", "aaba"]
    assert push_all(["aab", "ab"], ["aabaac"]) == ["", "aabab", ""]


def test_matched_stop_is_kept_on_request() -> None:
    # R12
    assert push_all(["one EN", "D two"], ["END"], include=True) == ["one ", "END"]


def test_match_that_completes_first_wins() -> None:
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


def test_flush_resets_the_matcher() -> None:
    matcher = StopMatcher(["END"])
    matcher.push("EN")
    assert matcher.flush() == "EN"
    assert matcher.push("D") == "D"
    assert matcher.matched is None


@pytest.mark.parametrize("stops", [[""], ["a", ""]])
def test_empty_stop_is_refused(stops: list[str]) -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        StopMatcher(stops)
