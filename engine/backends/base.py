"""The interface that every backend implements: load a model, generate, embed, abort."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict

from engine.capabilities import Capabilities
from engine.output import FinishReason, PromptToken, TokenLogprob
from engine.request import Chat, Prompt, RenderedPrompt, SamplingParams

# (bytes of the token, its id or -1, its log-probability) -> True to stop the generation.
# May be called from any thread, including a C library's; it never raises.
OnPiece = Callable[[bytes, int, TokenLogprob | None], bool]


# The backend methods other than generation that the server process may call by name.
SideCall = Literal[
    "render",
    "tokenize",
    "tokenize_text",
    "describe_tokenizer",
    "detokenize",
    "pieces",
    "infill",
    "find_grammar_violation",
    "embed",
    "rerank",
    "score",
]


class TokenizerInfo(TypedDict):
    """The special tokens and the chat template of a model; None for what it does not have."""

    bos_token: str | None
    eos_token: str | None
    chat_template: str | None


# Calls that take as long as a prefill.
PREFILL_CALLS = frozenset[SideCall]({"embed", "rerank", "score"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The finish reason, token counts and timings of a finished run.

    `completion_tokens` is None if the backend does not count tokens; the engine then uses the
    number of pieces that the backend delivered. `reported_tokens` is the count in the runtime's own
    statistics, None without them. `callbacks` is how often the runtime called back with a token;
    calls after an abort deliver no piece, so there may be more of them than pieces.
    `reload_ms` is the time spent reloading the model for this run. `grammar_break` is after how
    many characters the answer left its grammar, because the library could not follow it any
    further; None if it did not.
    """

    reason: FinishReason = FinishReason.STOP
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    reported_tokens: int | None = None
    callbacks: int | None = None
    cached_tokens: int = 0
    prefill_ms: float = 0.0
    reload_ms: float = 0.0
    grammar_break: int | None = None


class Backend(Protocol):
    """A model runtime with blocking methods; the engine calls them on worker threads.

    The engine calls `load` once, first, and `close` once, last, both on the thread that owns the
    backend. Up to `Capabilities.slots` calls of `run` are active at a time, each on its own thread.
    `abort` may be called from any thread at any time, even before the run starts or after it has
    ended. A run that is aborted before it starts ends as soon as it can.
    """

    def load(self) -> Capabilities:
        """Load the library and the model.

        Raises ModelLoadFailed with a reason that the operator can act on.
        """

    def render(self, chat: Chat) -> str:
        """Render a chat with the model's own template. Raises RequestRejected."""

    def tokenize(self, prompt: str | Chat) -> list[int]:
        """Return the token ids of a prompt, with special tokens parsed.

        Those in the texts of a chat's messages are read as plain text. Raises RequestRejected or
        UnsupportedParameter.
        """

    def tokenize_text(self, text: str) -> list[int]:
        """Return the token ids of a text, with special tokens parsed and none added.

        Raises UnsupportedParameter.
        """

    def describe_tokenizer(self, _: str) -> TokenizerInfo:
        """Return the special tokens and the chat template. Raises UnsupportedParameter."""

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids. Raises UnsupportedParameter or RequestRejected."""

    def pieces(self, text: str) -> list[str]:
        """Split a prompt into the texts of its tokens; joined, they equal `text`."""

    def infill(self, prefix_and_suffix: tuple[str, str]) -> str:
        """Return the fill-in-the-middle prompt for two texts. Raises UnsupportedParameter."""

    def find_grammar_violation(self, notation_and_text: tuple[str, str]) -> str | None:
        """Return why the backend's library refuses a `schema` in JSON or a `grammar`, else None.

        It was tried before, but perhaps with another version of the library. Raises
        RequestRejected.
        """

    def embed(self, text: RenderedPrompt) -> tuple[list[float], int]:
        """Return the embedding of a text, normalised to length 1, and its number of tokens.

        The engine calls it on a dedicated thread, for one text at a time. Raises
        UnsupportedParameter or RequestRejected.
        """

    def rerank(self, query_and_document: tuple[str, str]) -> tuple[float, int]:
        """Return how relevant a document is to a query, and the number of tokens of both.

        The engine calls it on the thread of `embed`. An error about one of the texts has `query`
        or `document` as its detail `param`. Raises UnsupportedParameter or RequestRejected.
        """

    def score(self, prompt_and_alternatives: tuple[RenderedPrompt, int]) -> list[PromptToken]:
        """Return the tokens of a prompt with their log-probabilities and likeliest alternatives.

        The engine calls it on the thread of `embed`. Raises UnsupportedParameter or
        RequestRejected.
        """

    def run(
        self,
        run_id: int,
        prompt: Prompt,
        sampling: SamplingParams,
        on_piece: OnPiece,
    ) -> RunResult:
        """Generate until done, calling `on_piece` for each token; return when the run has stopped.

        The backend renders a chat itself, because not every runtime allows rendering outside of
        it. The caller enforces `max_tokens` and stop strings and counts tokens; it stops the run
        by returning True from `on_piece`. The backend may end earlier. Raises RequestRejected or
        GenerationFailed.
        """

    def abort(self, run_id: int) -> None:
        """Make `run` return as soon as it can."""

    def close(self) -> None:
        """Free all resources; the caller makes sure that no run is active."""


# The keyword arguments of a backend: plain JSON values, because they are sent to the host process.
BackendOptions = Mapping[str, Any]
