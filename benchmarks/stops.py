"""Stop strings: the cost of their detection per piece of text.

Ours is `StopMatcher`, an automaton that also returns which text must be held back. The peers are
the two usual methods, each of which does less. One searches the whole text for every stop after
each piece, in time that grows with the text. The other searches a window of the last characters, in
constant time. Neither finds the earliest of two overlapping stops in one piece, or distinguishes
the beginning of a stop from other text. All three take turns on the same pieces, in which the first
characters of the stops are as frequent as in text with code, without a complete stop, because a run
that has stopped costs nothing more.

With ordinary text, more stops cost more only because more pieces contain the first character of a
stop. In the adverse text every piece starts like a stop, for any number of stops. It shows the
worst case and, by comparison of 16 stops with one, the cost of their number alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from time import perf_counter

from benchmarks.measure import Pairs, Sample, Table, max_budget
from benchmarks.options import Options, print_progress
from engine.stops import StopMatcher

NAME = "stops"
STOPS = (
    "<|im_end|>", "\n\nUser:", "###", "</s>", "\n\nHuman:", "Observation:", "[INST]", "<|eot_id|>",
    "```\n\n", "Question:", "<end_of_turn>", "\n\n\n", "STOP", "Assistant:", "<|endoftext|>", "---",
)  # fmt: skip
_WORDS = (
    " the", " of", " a", "tion", ".", ",", " and", " value", " returns", " list", "\n", " x", " =",
    " <", ">", " #", " User", " -", " self", "(", ")", ":", " S", "ing", " Question", " [", "]",
)  # fmt: skip
_ADVERSE = " <|im"
_COUNTS = (1, 4, 8, 16)
# The minimum number of pieces for one reliable timing.
_PIECES_A_TIMING = 20_000
# The number of pieces for which the whole text is searched; all of them would take minutes.
_FULL_RESCANS_FROM = 4_000
_FULL_RESCANS = 200
# The limit for constant time, with a margin for noise.
_FLAT = max_budget(1.5)
_BUDGET = max_budget(1.0)

# Processes all pieces and returns the seconds, without the setup of a request.
Scan = Callable[[list[str], Sequence[str]], float]


def run(options: Options) -> list[Table]:
    """Measure 1 to 16 stops with 100 to 100,000 pieces, ordinary and adverse ones."""
    full = Table(title=NAME, ours="StopMatcher", peer="rescan of the whole text")
    window = Table(title=f"{NAME}, window", ours="StopMatcher", peer="rescan of a window")
    sizes = (100, 4_000, options.size(100_000, 20_000))
    medians: dict[tuple[int, int], float] = {}

    def measure(kind: str, pieces: list[str], count: int) -> float:
        name = f"{len(pieces):,} {kind}pieces, {count} stop{'s' if count > 1 else ''}"
        print_progress(f"{NAME}: {name}")
        against_full, against_window = _take_turns(pieces, STOPS[:count], options.pairs)
        full.compare(name, "µs/piece", against_full, _BUDGET)
        window.compare(name, "µs/piece", against_window, _BUDGET)
        return Sample.of(against_full.ours).median

    for size in sizes:
        for count in _COUNTS:
            medians[size, count] = measure("", _text(size), count)
    longest = sizes[-1]
    one_stop, sixteen_stops = (
        measure("adverse ", [_ADVERSE] * longest, count) for count in (1, 16)
    )
    longer = [medians[longest, count] / medians[sizes[0], count] for count in _COUNTS]
    full.add_single(f"{longest:,} pieces over {sizes[0]}, worst of four", "x", [max(longer)], _FLAT)
    full.add_single("16 stops over 1, adverse pieces", "x", [sixteen_stops / one_stop], _FLAT)
    print_progress(f"{NAME}: building the automaton")
    for count in (1, 16):
        built = [_build_us(STOPS[:count]) for _ in range(options.pairs)]
        full.add_single(f"once a request: building it for {count}", "µs", built)
    full.notes.append(
        f"Above {_FULL_RESCANS_FROM:,} pieces, the whole text is rescanned only for "
        f"{_FULL_RESCANS} of them, evenly spread. All of them "
        "would take minutes, and the mean is the same."
    )
    return [full, window]


def _take_turns(pieces: list[str], stops: Sequence[str], rounds: int) -> tuple[Pairs, Pairs]:
    """Return µs per piece of StopMatcher and of either peer; the first round is a warm-up."""
    full, window = Pairs(), Pairs()
    for turn in range(rounds + 1):
        ours = _us(_match, pieces, stops)
        by_window = _us(_window, pieces, stops)
        by_full = _full_us(pieces, stops)
        if turn:
            full.add(ours, by_full)
            window.add(ours, by_window)
    return full, window


def _us(scan: Scan, pieces: list[str], stops: Sequence[str]) -> float:
    repeats = max(1, _PIECES_A_TIMING // len(pieces))
    seconds = sum(scan(pieces, stops) for _ in range(repeats))
    return seconds / (len(pieces) * repeats) * 1e6


def _match(pieces: list[str], stops: Sequence[str]) -> float:
    matcher = StopMatcher(stops)
    push = matcher.push
    started = perf_counter()
    for piece in pieces:
        push(piece)
        if matcher.matched is not None:
            raise AssertionError("the text must not hold a stop")
    return perf_counter() - started


def _window(pieces: list[str], stops: Sequence[str]) -> float:
    keep = max(map(len, stops)) - 1
    tail = ""
    started = perf_counter()
    for piece in pieces:
        text = tail + piece
        for stop in stops:
            if text.find(stop) >= 0:
                raise AssertionError("the text must not hold a stop")
        tail = text[-keep:]
    return perf_counter() - started


def _full(pieces: list[str], stops: Sequence[str]) -> float:
    text = ""
    started = perf_counter()
    for piece in pieces:
        text += piece
        for stop in stops:
            if text.find(stop) >= 0:
                raise AssertionError("the text must not hold a stop")
    return perf_counter() - started


def _full_us(pieces: list[str], stops: Sequence[str]) -> float:
    if len(pieces) < _FULL_RESCANS_FROM:
        return _us(_full, pieces, stops)
    if len(pieces) == _FULL_RESCANS_FROM:
        return _full(pieces, stops) / len(pieces) * 1e6
    texts = ("".join(pieces[: len(pieces) * n // _FULL_RESCANS]) for n in range(_FULL_RESCANS))
    return sum(_full([text], stops) for text in texts) / _FULL_RESCANS * 1e6


def _build_us(stops: Sequence[str]) -> float:
    started = perf_counter()
    for _ in range(100):
        StopMatcher(stops)
    return (perf_counter() - started) * 1e4


def _text(size: int) -> list[str]:
    # The same text every time, without a stop across two words.
    dice = random.Random(1)
    longest = max(map(len, STOPS))
    pieces: list[str] = []
    tail = ""
    while len(pieces) < size:
        word = dice.choice(_WORDS)
        after = tail[-longest:] + word
        if not any(stop in after for stop in STOPS):
            pieces.append(word)
            tail = after
    return pieces
