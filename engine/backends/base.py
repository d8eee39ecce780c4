"""The seam between the engine and whatever produces tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from engine.capabilities import Capabilities
from engine.output import FinishReason, TokenLogprob
from engine.request import Chat, Prompt, RenderedPrompt, SamplingParams

# (bytes of the token, its id or -1, its log-probability) -> True when no more is wanted.
# May be called from a foreign thread and never raises, so that C may call it too.
OnPiece = Callable[[bytes, int, TokenLogprob | None], bool]


# What a backend can be asked beside generating, each one a method of it.
SideCall = Literal["render", "tokenize", "detokenize", "pieces", "infill", "embed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended, as the backend counted it.

    `completion_tokens` is None where the backend does not count; the pieces it delivered are
    counted in any case. `reported_tokens` is the runtime's own statistic, where it has one beside
    its callbacks, and `callbacks` how many came, those after an abort included, where that may be
    more than the pieces delivered; `reload_ms` is what loading the model again for this run took.
    """

    reason: FinishReason = FinishReason.STOP
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    reported_tokens: int | None = None
    callbacks: int | None = None
    cached_tokens: int = 0
    prefill_ms: float = 0.0
    reload_ms: float = 0.0


class Backend(Protocol):
    """Blocking calls on worker threads; everything asynchronous is the engine's business.

    `load` comes first and once, `close` last and once, both on the thread that owns the backend.
    Up to `Capabilities.slots` calls of `run` are under way at a time, each on a thread of its own.
    `abort` may be called from any thread at any time, also for a run that is over, and for one that
    has not begun yet: that run then ends as soon as it can.
    """

    def load(self) -> Capabilities:
        """Load library and model. Raises ModelLoadFailed with the reason a person can act on."""

    def render(self, chat: Chat) -> str:
        """Return the prompt the model's own chat template makes. Raises RequestRejected."""

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of `text`, special tokens parsed. Raises UnsupportedParameter."""

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids. Raises UnsupportedParameter or RequestRejected."""

    def pieces(self, text: str) -> list[str]:
        """Return the text of each token of a prompt's text; joined they are the text."""

    def infill(self, around: tuple[str, str]) -> str:
        """Return the prompt for what is missing between two texts. Raises UnsupportedParameter."""

    def embed(self, text: RenderedPrompt) -> tuple[list[float], int]:
        """Return a text's vector, of length 1, and how many tokens it has.

        Asked on a thread of its own, one text at a time. Raises UnsupportedParameter or
        RequestRejected.
        """

    def run(
        self,
        run_id: int,
        prompt: Prompt,
        sampling: SamplingParams,
        on_piece: OnPiece,
    ) -> RunResult:
        """Generate until done, calling `on_piece` once a token; return only when all has stopped.

        A chat is put into the model's template here, since not every runtime lets that be done
        outside of it. `max_tokens`, stop strings and counting are the caller's, told by
        `on_piece`'s answer; a backend may end earlier by itself. Raises RequestRejected or
        GenerationFailed.
        """

    def abort(self, run_id: int) -> None:
        """Make `run` return as soon as it can."""

    def close(self) -> None:
        """Free everything; no run is under way."""


# Options a backend is built with: plain JSON values, since they cross to the host process.
BackendOptions = Mapping[str, Any]
