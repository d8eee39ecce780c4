"""One generation of llama.cpp's: its chunks in, pieces out, and how it ended."""

from __future__ import annotations

import logging
import threading
from typing import Any

from engine.backends.base import OnPiece, RunResult
from engine.backends.llamacpp.listener import to_engine_error
from engine.errors import BackendFailed, EngineError
from engine.output import FinishReason, TokenLogprob
from engine.request import SamplingParams

logger = logging.getLogger(__name__)


class CompletionRun:
    """Turns one run's chunks into pieces; every method is called on the run's own thread."""

    def __init__(
        self, on_piece: OnPiece, aborted: threading.Event, sampling: SamplingParams
    ) -> None:
        self._on_piece = on_piece
        self._aborted = aborted
        self._max_tokens = sampling.max_tokens
        self._alternatives = sampling.logprobs or 0
        self._predicted = 0
        self._said: list[str] = []
        # A token without text, until it is known not to have been the end of the sequence.
        self._mute: tuple[int, TokenLogprob | None] | None = None
        self._progress: dict[str, Any] = {}
        self._final: dict[str, Any] | None = None
        self._error: EngineError | None = None

    def on_chunk(self, chunk: dict[str, Any]) -> bool:
        """Take one chunk; True ends the run. xllamacpp swallows exceptions, so they are kept."""
        try:
            return self._take(chunk)
        except Exception as error:
            logger.exception("a chunk of llama.cpp's could not be read")
            self._error = BackendFailed(f"llama.cpp sent something unexpected: {error}")
            return True

    def _take(self, chunk: dict[str, Any]) -> bool:
        if (error := chunk.get("error")) is not None:
            self._error = to_engine_error(error)
            return True
        verbose = chunk["__verbose"]
        if (progress := verbose.get("prompt_progress")) is not None:
            self._progress = progress
            return self._aborted.is_set()
        predicted: int = verbose["tokens_predicted"]
        if verbose["stop"]:
            self._final = verbose
            if verbose["stop_type"] != "eos":
                self._give_mute()
            return False
        tokens: list[int] = verbose["tokens"]
        # The tokens of a character that was not complete yet were counted but brought no chunk.
        done = self._give_mute()
        for _ in range(predicted - self._predicted - 1):
            done = self._on_piece(b"", -1, None)
        self._predicted = predicted
        choice = chunk["choices"][0]
        token = tokens[-1] if tokens else -1
        logprob = None
        if logprobs := choice.get("logprobs"):
            logprob = _parse_logprob(logprobs["content"][0], self._alternatives)
        if text := choice["text"]:
            self._said.append(text)
            done = self._on_piece(text.encode("utf-8", "surrogatepass"), token, logprob)
        else:
            self._mute = token, logprob
        if self._aborted.is_set():
            return True
        # At its own limit llama.cpp is about to end by itself, with its final counts.
        return done and predicted != self._max_tokens

    def _give_mute(self) -> bool:
        mute, self._mute = self._mute, None
        return mute is not None and self._on_piece(b"", *mute)

    @property
    def text(self) -> str:
        """What was generated."""
        return "".join(self._said)

    def end(self) -> RunResult:
        """Return how it ended. Raises what went wrong."""
        if self._error is not None:
            raise self._error
        progress, final = self._progress, self._final
        if final is None:
            if not progress:
                raise BackendFailed("llama.cpp ended the run without a word")
            return RunResult(
                prompt_tokens=progress["total"],
                cached_tokens=progress["cache"],
                prefill_ms=progress["time_ms"],
            )
        limit = final["stop_type"] == "limit"
        timings = final["timings"]
        return RunResult(
            reason=FinishReason.LENGTH if limit else FinishReason.STOP,
            prompt_tokens=final["tokens_evaluated"],
            completion_tokens=final["tokens_predicted"],
            cached_tokens=max(timings["cache_n"], 0),
            prefill_ms=timings["prompt_ms"],
        )


def _parse_logprob(entry: dict[str, Any], alternatives: int) -> TokenLogprob:
    # llama.cpp says -inf for what cannot be chosen; JSON has no such number, OpenAI says -9999.
    top = tuple((each["token"], max(each["logprob"], -9999.0)) for each in entry["top_logprobs"])
    return TokenLogprob(entry["token"], max(entry["logprob"], -9999.0), top[:alternatives])
