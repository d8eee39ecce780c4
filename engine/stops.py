"""Stop strings, found as the text arrives."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopMatcher:
    """Finds the first of several stop strings in text that arrives in pieces (R11, R26).

    An Aho-Corasick automaton that carries its state from piece to piece, so the outcome cannot
    depend on how the text was cut: the match that completes first wins, the longest one when
    several complete on the same character. The automaton's depth is the length of the longest
    suffix that may still become a stop string, which is exactly what must be held back.
    Cost per piece grows with the piece alone, neither with the text so far nor with the stops.

    `push` returns text that is safe to show; after it, `matched` is the stop string that was hit or
    None. `flush` gives back what was held when the stream ended without a hit. Owned by the one
    thread that produces the pieces; must not be pushed again once it has matched.
    """

    __slots__ = ("_depth", "_firsts", "_go", "_held", "_hit", "_include", "_state", "matched")

    def __init__(self, stops: Sequence[str], *, include_stop_str: bool = False) -> None:
        if any(not stop for stop in stops):
            raise ValueError("a stop string must not be empty")
        self._include = include_stop_str
        self._build(stops)
        self._firsts = frozenset(stop[0] for stop in stops)
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def _build(self, stops: Sequence[str]) -> None:
        go: list[dict[str, int]] = [{}]
        depth = [0]
        hit: list[str | None] = [None]
        for stop in stops:
            state = 0
            for char in stop:
                target = go[state].get(char)
                if target is None:
                    target = len(go)
                    go[state][char] = target
                    go.append({})
                    depth.append(depth[state] + 1)
                    hit.append(None)
                state = target
            hit[state] = stop
        # Breadth first, so that a state's failure state is complete before it is inherited from:
        # afterwards one dictionary look-up a character decides, without walking failure links.
        pending = deque((target, 0) for target in go[0].values())
        while pending:
            state, fail = pending.popleft()
            pending.extend((target, go[fail].get(char, 0)) for char, target in go[state].items())
            go[state] = go[fail] | go[state]
            hit[state] = hit[state] or hit[fail]
        self._go, self._depth, self._hit = go, depth, hit

    def push(self, text: str) -> str:
        """Take the next piece and return the text that can no longer be part of a stop string."""
        state = self._state
        if not state and self._firsts.isdisjoint(text):
            return text
        go, hit = self._go, self._hit
        for position, char in enumerate(text):
            state = go[state].get(char, 0)
            stop = hit[state]
            if stop is not None:
                self.matched = stop
                end = self._held + text[: position + 1]
                self._held = ""
                return end if self._include else end[: len(end) - len(stop)]
        self._state = state
        pending = self._held + text
        safe = len(pending) - self._depth[state]
        self._held = pending[safe:]
        return pending[:safe]

    def flush(self) -> str:
        """Return the text held back so far: the stream has ended, it is no stop string."""
        held, self._held, self._state = self._held, "", 0
        return held
