"""The stop matcher against an oracle that compares whole strings after every character."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import example, given
from hypothesis import strategies as st

from engine.backends.base import RunResult
from engine.output import Delta
from engine.reply.parser import read_reply
from engine.reply.reply_format import ReplyFormat
from engine.request import SamplingParams, StopScope
from engine.runs.answer_stops import AnswerStopMatcher
from engine.runs.generation import Generation
from engine.runs.stops import StopMatcher
from tests.written_calls import FUNCTIONS

# Few letters, so that stops overlap, nest and repeat; one of them outside the BMP.
LETTERS = "ab😀"
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=6), min_size=1, max_size=16)
PIECES = st.lists(st.text(LETTERS, max_size=8), max_size=20)


@dataclass
class Oracle:
    """Reads one character at a time and compares it with each stop string."""

    stops: list[str]
    include: bool
    consumed: str = ""
    matched: str | None = None

    def read(self, text: str) -> None:
        for char in text:
            if self.matched is not None:
                return
            self.consumed += char
            hits = [stop for stop in self.stops if self.consumed.endswith(stop)]
            self.matched = max(hits, key=len) if hits else None

    def visible(self) -> str:
        """Return the text without the stop string and without an ending that may begin one."""
        if self.matched is not None:
            hidden = 0 if self.include else len(self.matched)
        else:
            prefixes = [stop[:end] for stop in self.stops for end in range(1, len(stop))]
            hidden = max((len(p) for p in prefixes if self.consumed.endswith(p)), default=0)
        return self.consumed[: len(self.consumed) - hidden]


@given(pieces=PIECES, stops=STOPS, include=st.booleans())
def test_visible_text_agrees_with_the_oracle_after_every_piece(
    pieces: list[str], stops: list[str], include: bool
) -> None:
    # R11, R12, R26: no part of a matching stop is visible, and all other text is, without delay.
    matcher, oracle = StopMatcher(stops, include_stop_str=include), Oracle(stops, include)
    visible = ""
    for piece in pieces:
        visible += matcher.push(piece)
        oracle.read(piece)
        assert matcher.matched == oracle.matched
        assert visible == oracle.visible()
        if matcher.matched is not None:
            assert matcher.flush() == ""
            return
    assert visible + matcher.flush() == oracle.consumed


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


def generate(pieces: Sequence[str], stops: Sequence[str], min_tokens: int) -> tuple[str, object]:
    deltas: list[Delta] = []
    sampling = SamplingParams(stop=tuple(stops), min_tokens=min_tokens)
    generation = Generation(sampling, deltas.append)
    for piece in pieces:
        if generation.on_piece(piece.encode(), 1, None):
            break
    finish = generation.finish(RunResult())
    return "".join(delta.text for delta in deltas), finish.stop_reason


@given(pieces=PIECES, stops=STOPS, min_tokens=st.integers(0, 20))
def test_min_tokens_only_takes_away_the_stops_that_end_within_them(
    pieces: list[str], stops: list[str], min_tokens: int
) -> None:
    text = "".join(pieces)
    first = len("".join(pieces[:min_tokens]))
    ends = [
        end
        for end in range(first + 1, len(text) + 1)
        if any(text[:end].endswith(stop) for stop in stops)
    ]
    expected, reason = text, None
    if ends:
        reason = max((stop for stop in stops if text[: ends[0]].endswith(stop)), key=len)
        expected = text[: ends[0] - len(reason)]
    assert generate(pieces, stops, min_tokens) == (expected, reason)


FRAGMENTS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "```json"),
    *("<function=", "time>", "</function>", "call:", "<|python_tag|>", "functools", "time"),
    *("{", "}", "[", "]", "(", ")", '"', ",", ":", "<", "\n", " ", "x", "1", "ab", "END", "EN"),
    *('{"name": "time", "arguments": {}}', '"name": ', '"arguments": ', "D", "é😀"),
)
OUTPUTS = st.lists(st.sampled_from(FRAGMENTS), max_size=16)
ANSWER_STOPS = st.lists(st.sampled_from(("END", "x", " ", "\n", "ab1", "{", '"', "😀")), min_size=1)


# The line break belongs to the reasoning, and the text is empty.
@example(fragments=["\n"], stops=["\n"], has_calls=False, opened=True)
@given(fragments=OUTPUTS, stops=ANSWER_STOPS, has_calls=st.booleans(), opened=st.booleans())
def test_stop_in_an_answer_does_not_depend_on_the_split_and_is_in_its_text(
    fragments: list[str], stops: list[str], has_calls: bool, opened: bool
) -> None:
    functions = FUNCTIONS if has_calls else {}
    scope = StopScope(functions=tuple(functions), starts_in_reasoning=opened)

    def outcome(pieces: Sequence[str]) -> tuple[str, str | None]:
        matcher, text = AnswerStopMatcher(StopMatcher(stops), scope), ""
        for piece in pieces:
            text += matcher.push(piece)
            if matcher.matched is not None:
                return text, matcher.matched
        return text + matcher.flush(), matcher.matched

    output = "".join(fragments)
    cut, stop = outcome([output])
    assert outcome(fragments) == outcome(list(output)) == (cut, stop)
    reply_format = ReplyFormat(functions=functions)
    reply = read_reply(output, reply_format, starts_in_reasoning=opened)
    if stop is None:
        assert cut == output
        assert reply.text != output or all(each not in output for each in stops)
    else:
        assert output.startswith(cut + stop)
        kept = read_reply(cut + stop, reply_format, starts_in_reasoning=opened)
        assert reply.text
        assert kept.reasoning == reply.reasoning
