"""Finds stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopMatcher:
    """Finds the first of several stop strings in text that arrives in pieces.

    It is an Aho-Corasick automaton that keeps its state between pieces, so the result does not
    depend on how the text was cut: the match that completes first wins, and the longest one if
    several complete on the same character. The depth of the state is the length of the longest
    suffix that may still become a stop string, which is exactly the text to hold back. The cost of
    a piece depends only on its length, not on the text before it or on the number of stop strings.

    `push` returns text that is safe to send; after it, `matched` is the stop string that was found,
    or None. `flush` returns the held-back text when the stream ends without a match. Owned by the
    thread that produces the pieces; `push` must not be called after a match.
    """

    __slots__ = (
        "_depth",
        "_first_chars",
        "_held",
        "_include_stop_str",
        "_state",
        "_stop_at_state",
        "_transitions",
        "matched",
    )

    def __init__(self, stops: Sequence[str], *, include_stop_str: bool = False) -> None:
        if any(not stop for stop in stops):
            raise ValueError("a stop string must not be empty")
        self._include_stop_str = include_stop_str
        self._build(stops)
        self._first_chars = frozenset(stop[0] for stop in stops)
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def _build(self, stops: Sequence[str]) -> None:
        transitions: list[dict[str, int]] = [{}]
        depth = [0]
        stop_at_state: list[str | None] = [None]
        for stop in stops:
            state = 0
            for char in stop:
                target = transitions[state].get(char)
                if target is None:
                    target = len(transitions)
                    transitions[state][char] = target
                    transitions.append({})
                    depth.append(depth[state] + 1)
                    stop_at_state.append(None)
                state = target
            stop_at_state[state] = stop
        # Breadth first, so that a state's failure state is complete before its transitions are
        # copied: afterwards each character takes one dictionary look-up and no failure links.
        pending = deque((target, 0) for target in transitions[0].values())
        while pending:
            state, fail = pending.popleft()
            pending.extend(
                (target, transitions[fail].get(char, 0))
                for char, target in transitions[state].items()
            )
            transitions[state] = transitions[fail] | transitions[state]
            stop_at_state[state] = stop_at_state[state] or stop_at_state[fail]
        self._transitions, self._depth, self._stop_at_state = transitions, depth, stop_at_state

    def push(self, text: str, ignored_chars: int = 0) -> str:
        """Add the next piece; return the text that cannot be part of a stop string any more.

        A stop string that ends within the first `ignored_chars` characters does not count.
        """
        state = self._state
        if not state and self._first_chars.isdisjoint(text):
            return text
        transitions, stop_at_state = self._transitions, self._stop_at_state
        for position, char in enumerate(text):
            state = transitions[state].get(char, 0)
            stop = stop_at_state[state]
            if stop is not None and position >= ignored_chars:
                self.matched = stop
                end = self._held + text[: position + 1]
                self._held = ""
                return end if self._include_stop_str else end[: len(end) - len(stop)]
        self._state = state
        pending = self._held + text
        safe = len(pending) - self._depth[state]
        self._held = pending[safe:]
        return pending[:safe]

    @property
    def is_holding(self) -> bool:
        """Whether text is held back."""
        return bool(self._held)

    def flush(self) -> str:
        """Return the held-back text, because no text follows it."""
        held, self._held, self._state = self._held, "", 0
        return held
