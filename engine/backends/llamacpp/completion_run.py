"""One generation of llama.cpp: converts its chunks to pieces and collects the result."""

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
    """Converts one run's chunks to pieces; every method is called on the run's own thread."""

    def __init__(
        self, on_piece: OnPiece, aborted: threading.Event, sampling: SamplingParams
    ) -> None:
        self._on_piece = on_piece
        self._aborted = aborted
        self._max_tokens = sampling.max_tokens
        self._max_alternatives = sampling.logprobs or 0
        self._predicted = 0
        self._texts: list[str] = []
        # A token without text is held back: it may be the end-of-sequence token.
        self._textless_token: tuple[int, TokenLogprob | None] | None = None
        self._progress: dict[str, Any] = {}
        self._final: dict[str, Any] | None = None
        self._error: EngineError | None = None

    def on_chunk(self, chunk: dict[str, Any]) -> bool:
        """Process one chunk; return True to stop the run.

        xllamacpp swallows exceptions, so the first one is stored and raised by `result`.
        """
        try:
            return self._process_chunk(chunk)
        except Exception as error:
            logger.exception("a chunk of llama.cpp's could not be read")
            self._error = BackendFailed(f"llama.cpp sent something unexpected: {error}")
            return True

    def _process_chunk(self, chunk: dict[str, Any]) -> bool:
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
                self._flush_textless_token()
            return False
        tokens: list[int] = verbose["tokens"]
        # llama.cpp counts the tokens of an incomplete character but sends no chunk for them.
        should_stop = self._flush_textless_token()
        for _ in range(predicted - self._predicted - 1):
            should_stop = self._on_piece(b"", -1, None)
        self._predicted = predicted
        choice = chunk["choices"][0]
        token = tokens[-1] if tokens else -1
        logprob = None
        if logprobs := choice.get("logprobs"):
            logprob = _parse_logprob(logprobs["content"][0], self._max_alternatives)
        if text := choice["text"]:
            self._texts.append(text)
            should_stop = self._on_piece(text.encode("utf-8", "surrogatepass"), token, logprob)
        else:
            self._textless_token = token, logprob
        if self._aborted.is_set():
            return True
        # At max_tokens llama.cpp ends the run itself, and then reports its final counts.
        return should_stop and predicted != self._max_tokens

    def _flush_textless_token(self) -> bool:
        mute, self._textless_token = self._textless_token, None
        return mute is not None and self._on_piece(b"", *mute)

    @property
    def text(self) -> str:
        """The generated text."""
        return "".join(self._texts)

    @property
    def has_ended_itself(self) -> bool:
        """Whether the model ended its answer, and no limit or stop string did."""
        return self._final is not None and self._final["stop_type"] == "eos"

    def result(self) -> RunResult:
        """Return the result of the run. Raises the error that ended it."""
        if self._error is not None:
            raise self._error
        progress, final = self._progress, self._final
        if final is None:
            if self._aborted.is_set() and not progress:
                return RunResult()
            if not progress:
                raise BackendFailed("llama.cpp ended the run without a word")
            return RunResult(
                prompt_tokens=progress["total"],
                cached_tokens=progress["cache"],
                prefill_ms=progress["time_ms"],
            )
        at_limit = final["stop_type"] == "limit"
        timings = final["timings"]
        return RunResult(
            reason=FinishReason.LENGTH if at_limit else FinishReason.STOP,
            prompt_tokens=final["tokens_evaluated"],
            completion_tokens=final["tokens_predicted"],
            cached_tokens=max(timings["cache_n"], 0),
            prefill_ms=timings["prompt_ms"],
        )


def _parse_logprob(entry: dict[str, Any], max_alternatives: int) -> TokenLogprob:
    # llama.cpp reports -inf for excluded tokens. JSON has no infinity; OpenAI reports -9999.
    top = tuple((each["token"], max(each["logprob"], -9999.0)) for each in entry["top_logprobs"])
    return TokenLogprob(entry["token"], max(entry["logprob"], -9999.0), top[:max_alternatives])
