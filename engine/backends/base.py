"""The interface that every backend implements: load a model, generate, abort, other operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict

from engine.capabilities import Capabilities
from engine.output import FinishReason, PromptToken, TokenLogprob
from engine.request import Chat, Prompt, RenderedPrompt, SamplingParams

# (bytes of the token, its id or -1, its log-probability) -> True to stop the generation.
# May be called from any thread, including a C library's; it never raises.
OnPiece = Callable[[bytes, int, TokenLogprob | None], bool]


class TokenizerInfo(TypedDict):
    """The special tokens and the chat template of a model; None for what it does not have."""

    bos_token: str | None
    eos_token: str | None
    chat_template: str | None


class Operations(TypedDict, total=False):
    """The operations of a backend apart from generation, each for one payload that is a JSON value.

    A backend has no entry for what it cannot do. Operations that take as long as a prefill
    (`PREFILL_CALLS`) are called on one thread, and the others on another one.
    """

    # Renders a chat with the model's own template. Raises RequestRejected.
    render: Callable[[Chat], str]
    # Returns the token ids of a prompt, with special tokens parsed; in the texts of a chat's
    # messages they are read as plain text. Raises RequestRejected or UnsupportedParameter.
    tokenize: Callable[[str | Chat], list[int]]
    # Returns the token ids of a text, with special tokens parsed and none added. Raises
    # UnsupportedParameter.
    tokenize_text: Callable[[str], list[int]]
    # Returns the special tokens and the chat template. Raises UnsupportedParameter.
    describe_tokenizer: Callable[[str], TokenizerInfo]
    # Returns the text of token ids. Raises UnsupportedParameter or RequestRejected.
    detokenize: Callable[[Sequence[int]], str]
    # Splits a prompt into the texts of its tokens; joined, they equal the prompt.
    pieces: Callable[[str], list[str]]
    # Returns the fill-in-the-middle prompt for a prefix and a suffix. Raises UnsupportedParameter.
    infill: Callable[[tuple[str, str]], str]
    # Returns why the backend's library refuses a `schema` in JSON or a `grammar`, else None. It was
    # tried before, but perhaps with another version of the library. Raises RequestRejected.
    find_grammar_violation: Callable[[tuple[str, str]], str | None]
    # Returns the embedding of a text, normalised to length 1, and its number of tokens. Raises
    # UnsupportedParameter or RequestRejected.
    embed: Callable[[RenderedPrompt], tuple[list[float], int]]
    # Returns how relevant a document is to a query, and the number of tokens of both. An error
    # about one of the texts has `query` or `document` as its detail `param`. Raises like `embed`.
    rerank: Callable[[tuple[str, str]], tuple[float, int]]
    # Returns the tokens of a prompt with their log-probabilities and as many likeliest
    # alternatives. Raises like `embed`.
    score: Callable[[tuple[RenderedPrompt, int]], list[PromptToken]]


# The name of an operation.
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
# Calls that take as long as a prefill.
PREFILL_CALLS = frozenset[SideCall]({"embed", "rerank", "score"})


def payload_prompt(payload: Any) -> RenderedPrompt:
    """Return what a call that takes as long as a prefill computes: its texts, or its token ids."""
    if isinstance(payload, str):
        return payload
    if texts := [each for each in payload if isinstance(each, str)]:
        return "".join(texts)
    tokens = next((each for each in payload if isinstance(each, tuple | list)), payload)
    return tuple(tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The finish reason, token counts and timings of a finished run.

    A backend that does not count tokens has no `completion_tokens`; the engine then uses the
    number of pieces that the backend delivered. `reported_tokens` is the count in the runtime's own
    statistics, None without them. `callbacks` is how often the runtime called back with a token;
    calls after an abort deliver no piece, so there may be more of them than pieces.
    `reload_ms` is the time spent reloading the model for this run. `grammar_break` is after how
    many characters the answer left its grammar, because the library could not follow it any
    further; None if it did not. `reasoning_tokens` are those of the completion that are reasoning,
    None if the backend does not count them. `warnings` are about the finished answer.
    """

    reason: FinishReason = FinishReason.STOP
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    reported_tokens: int | None = None
    callbacks: int | None = None
    cached_tokens: int = 0
    reasoning_tokens: int | None = None
    prefill_ms: float = 0.0
    reload_ms: float = 0.0
    grammar_break: int | None = None
    warnings: tuple[str, ...] = ()


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

    @property
    def operations(self) -> Operations:
        """The operations apart from generation; read after `load`."""

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
