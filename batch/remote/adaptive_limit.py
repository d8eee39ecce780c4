"""The number of lines in progress that servers can use, by their refusals and their latency."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from statistics import median

# The factor at a refusal, and in a trial of a smaller limit.
_DECREASE = 0.7
# Refusals within this time are one sign of overload: they are answers to lines sent together.
_DECREASE_INTERVAL_S = 1.0
# A latency that is higher than the lowest one by this factor may come from a queue in the server.
# It is the default `rttTolerance` of Netflix's Gradient2Limit.
_MAX_LATENCY_RATIO = 1.5
# A trial is a success if it keeps this part of the throughput. Without a queue in the server, it
# would keep only _DECREASE of it.
_MIN_THROUGHPUT_RATIO = (1 + _DECREASE) / 2
# The median of three answers is not changed by one slow answer. A batch begins with them, and later
# has time for medians that vary less.
_MIN_FIRST_ANSWERS, _MIN_ANSWERS = 3, 20
# Throughput varies more than a median, because tokens are counted at the end of an answer.
_THROUGHPUT_ROUNDS = 8


@dataclass(slots=True)
class _Round:
    """The first `answers` answers since a moment: their seconds per token, and all their tokens."""

    started_at_s: float
    answers: int
    latencies_s: list[float] = field(default_factory=list)
    tokens: int = 0
    ended_at_s: float = 0.0

    def add(self, latency_s: float, tokens: int) -> bool:
        """Add an answer, and return whether the round is complete."""
        self.latencies_s.append(latency_s / tokens)
        self.tokens += tokens
        self.ended_at_s = time.monotonic()
        return len(self.latencies_s) >= self.answers

    @property
    def latency_s(self) -> float:
        """Seconds per token of the median answer."""
        return median(self.latencies_s)

    @property
    def throughput(self) -> float:
        """Tokens per second of all answers together."""
        return self.tokens / max(self.ended_at_s - self.started_at_s, 1e-6)


class AdaptiveLimit:
    """A limit from 1 to `maximum`, which rises as long as more lines give more throughput.

    It begins at 1, doubles with each round of answers, and rises by one per round after the first
    overload. A refusal lowers it by a third: the additive increase and multiplicative decrease of
    TCP (RFC 5681).

    A server that queues lines does not refuse them, but each takes longer. If the latency per token
    of two rounds is 1.5 times the lowest one, the limit is lowered by a third as a trial. If the
    throughput stays, the lines had only waited in the server, and the limit stays low. If it falls,
    the lines were answered at the same time, and take longer for another reason, such as longer
    prompts or a larger batch on a GPU. Then the limit is restored, and this latency is the new
    normal one. The idea is that of TCP Vegas (Brakmo and Peterson, 1995), which compares with the
    lowest latency, and of the Gradient2 limit of Netflix's concurrency-limits, which compares with
    a long-term one. The trial is this project's. The latency of a round is its median, which no
    single slow answer changes.

    An answer has a size in tokens, or in any other unit that is the same for all answers. Owned by
    one thread.
    """

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.value = 1.0
        self._is_starting = True
        self._decreased_at_s = float("-inf")
        self._lowest_latency_s = float("inf")
        # Whether the round measures the throughput before a trial.
        self._is_measuring = False
        # During a trial: the round before it.
        self._before: _Round | None = None
        self._limit_before = self.value
        # Answers to lines that began before the limit was lowered.
        self._ignored_answers = 0
        self._round = self._begin_round()

    def record_answer(self, latency_s: float, tokens: int, in_progress: int) -> None:
        """Count an answer of `tokens` tokens, at least 1, and adapt the limit after a round.

        `in_progress` is the number of lines in progress, with this one.
        """
        if self._ignored_answers:
            self._ignored_answers -= 1
            self._round.started_at_s = time.monotonic()
            return
        if not self._round.add(latency_s, tokens):
            return
        if self._before is not None:
            self._end_trial(self._round, self._before, in_progress)
        elif self._is_measuring:
            self._begin_trial(self._round, in_progress)
        else:
            self._compare_latency(self._round)
        self._round = self._begin_round()

    def record_refusal(self) -> None:
        """Lower the limit, at most once a second."""
        now = time.monotonic()
        if now - self._decreased_at_s >= _DECREASE_INTERVAL_S:
            self._decreased_at_s = now
            self.value = max(self.value * _DECREASE, 1.0)
            self._is_starting = self._is_measuring = False
            self._before = None
            self._round = self._begin_round()

    def _compare_latency(self, finished: _Round) -> None:
        """Raise the limit, or measure the throughput first if the latency is high."""
        self._lowest_latency_s = min(self._lowest_latency_s, finished.latency_s)
        self._is_measuring = self._is_slow(finished)
        if not self._is_measuring:
            step = self.value if self._is_starting else 1.0
            self.value = min(self.value + step, float(self.maximum))

    def _begin_trial(self, finished: _Round, in_progress: int) -> None:
        """Lower the limit for a round, if the latency is still high."""
        self._is_measuring = False
        if self._is_slow(finished):
            self._before, self._limit_before = finished, self.value
            self.value = max(self.value * _DECREASE, 1.0)
            self._ignored_answers = in_progress - 1

    def _end_trial(self, finished: _Round, before: _Round, in_progress: int) -> None:
        """Keep the lower limit if it has not cost throughput, and restore the limit otherwise."""
        self._before = None
        if finished.throughput >= before.throughput * _MIN_THROUGHPUT_RATIO:
            self._is_starting = False
            self._begin_trial(finished, in_progress)
        else:
            self.value = self._limit_before
            self._lowest_latency_s = before.latency_s

    def _is_slow(self, finished: _Round) -> bool:
        is_high = finished.latency_s > self._lowest_latency_s * _MAX_LATENCY_RATIO
        return is_high and int(self.value) > 1

    def _begin_round(self) -> _Round:
        """Return an empty round of as many answers as the next decision needs."""
        if self._is_measuring or self._before is not None:
            answers = max(int(self.value) * _THROUGHPUT_ROUNDS, _MIN_ANSWERS)
        else:
            minimum = _MIN_FIRST_ANSWERS if self._is_starting else _MIN_ANSWERS
            answers = max(int(self.value), minimum)
        return _Round(time.monotonic(), answers)
