"""Turns the token pieces of one run into deltas, on the run's own thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from common.utf8 import Utf8Decoder
from engine.backends.base import RunResult
from engine.output import Delta, Finish, FinishReason, Timings, TokenLogprob, Usage, new_delta
from engine.request import SamplingParams
from engine.runs.answer_stops import AnswerStopMatcher
from engine.runs.stops import StopMatcher


class Generation:
    """Decodes the pieces, finds stop strings, counts tokens, and decides when the run must stop.

    Everything per token happens in `on_piece`. A C callback may call it, so it never raises and
    never waits. After it has returned True it ignores all pieces, so a late callback of an aborted
    run has no effect. Owned by the thread from which the backend calls; `cancel` may be called from
    any thread.
    """

    __slots__ = (
        "_are_tokens",
        "_chars",
        "_decode",
        "_done",
        "_emit",
        "_first_token_s",
        "_max_tokens",
        "_min_tokens",
        "_started_s",
        "_stop_ids",
        "_stops",
        "_tokens",
        "reason",
        "stop_reason",
    )

    def __init__(
        self,
        sampling: SamplingParams,
        emit: Callable[[Delta], None],
        *,
        are_pieces_tokens: bool = True,
    ) -> None:
        self._decode = Utf8Decoder().decode
        self._stops = _build_stops(sampling)
        self._stop_ids = frozenset(sampling.stop_token_ids)
        # Where a piece may be more or less than a token, the backend itself keeps the limit.
        self._are_tokens = are_pieces_tokens
        self._max_tokens = sampling.max_tokens if are_pieces_tokens else None
        self._min_tokens = sampling.min_tokens
        self._emit = emit
        self._tokens = 0
        self._started_s = self._first_token_s = time.monotonic()
        # Characters of the decoded text, before stop strings are removed.
        self._chars = 0
        self._done = False
        self.reason: FinishReason | None = None
        self.stop_reason: str | int | None = None

    def on_piece(self, piece: bytes, token_id: int, logprob: TokenLogprob | None) -> bool:
        """Process one token's bytes; return True if the run must stop."""
        if self._done:
            return True
        self._tokens += 1
        if self._tokens == 1:
            self._first_token_s = time.monotonic()
        may_end = self._tokens > self._min_tokens
        if may_end and token_id in self._stop_ids:
            self._end_text(FinishReason.STOP, token_id)
            return True
        text = self._decode(piece)
        if logprob is not None:
            logprob = replace(logprob, raw=piece, offset=self._chars)
        self._chars += len(text)
        stops = self._stops
        if stops is not None:
            # A stop string may begin in the first `min_tokens` tokens and end after them.
            text = stops.push(text, 0 if may_end else len(text))
            if stops.matched is not None:
                self._emit(Delta(text, logprob))
                self._end(FinishReason.STOP, stops.matched)
                return True
        self._emit(new_delta((text, logprob)))
        if self._tokens == self._max_tokens:
            self._end_text(FinishReason.LENGTH, None)
        return self._done

    def cancel(self) -> None:
        """Ignore all further pieces."""
        self._done = True

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled before it ended; to be read before `finish` is called."""
        return self._done and self.reason is None

    def finish(self, end: RunResult) -> Finish:
        """Return the finish of the answer, after `Backend.run` has returned.

        If `on_piece` stopped the run, its own token count is used: the backend may have produced a
        token or two more before it stopped. Otherwise the backend's count is used, because it
        includes an end-of-sequence token that has no piece.
        """
        if self.reason is None:
            if not self._done:
                self._end_text(end.reason, None)
            completion = self._tokens if end.completion_tokens is None else end.completion_tokens
        else:
            completion = self._tokens
            if not self._are_tokens and end.completion_tokens is not None:
                completion = end.completion_tokens
        return Finish(
            reason=self.reason or end.reason,
            stop_reason=self.stop_reason,
            usage=Usage(end.prompt_tokens, completion, end.cached_tokens, end.reasoning_tokens),
            timings=Timings(
                prefill_ms=end.prefill_ms,
                reload_ms=end.reload_ms,
                first_token_ms=(self._first_token_s - self._started_s) * 1000,
            ),
            grammar_break=end.grammar_break,
            warnings=end.warnings,
        )

    def _end_text(self, reason: FinishReason, stop_reason: str | int | None) -> None:
        """Emit the held-back text and end; a stop string in that text is the reason then."""
        stops = self._stops
        if stops is not None:
            if held := stops.flush():
                self._emit(Delta(held))
            if stops.matched is not None:
                reason, stop_reason = FinishReason.STOP, stops.matched
        self._end(reason, stop_reason)

    def _end(self, reason: FinishReason, stop_reason: str | int | None) -> None:
        self._done = True
        self.reason = reason
        self.stop_reason = stop_reason


def _build_stops(sampling: SamplingParams) -> StopMatcher | AnswerStopMatcher | None:
    if not sampling.stop:
        return None
    matcher = StopMatcher(sampling.stop, include_stop_str=sampling.include_stop_str_in_output)
    scope = sampling.stop_scope
    return matcher if scope is None else AnswerStopMatcher(matcher, scope)
