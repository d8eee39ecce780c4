"""A server of llama.cpp's with its model loaded, inside this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.backends.llamacpp.listener import ListenerClient, to_engine_error
from engine.backends.llamacpp.slots import CacheSlots
from engine.errors import ModelLoadFailed
from engine.request import RenderedPrompt

# llama.cpp looks for an abort once a batch: small ones keep an abort in prefill under a second on
# a slow CPU, at no measured cost in prefill speed.
_BATCH_TOKENS = 64


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """How far a draft model guesses ahead, and how sure it must be of each token."""

    tokens: int
    threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What a server is loaded with; `context` is per slot, in tokens.

    With a `draft_path` that model guesses ahead as `draft` says. `vectors` makes a server of
    embeddings, by their mean where the model was not made for them, which `pooled` says.
    """

    path: Path
    name: str
    context: int
    slots: int
    threads: int
    draft_path: Path | None = None
    draft: DraftConfig = DraftConfig(tokens=5, threshold=0.0)
    vectors: bool = False
    pooled: bool = False

    @property
    def batch(self) -> int:
        """How many tokens are computed together."""
        if self.vectors:
            # A vector is made of one batch.
            return self.context
        # Each slot's guesses are looked at in one batch, all slots' together.
        guesses = self.slots * (self.draft.tokens + 1) if self.draft_path is not None else 0
        return max(_BATCH_TOKENS, guesses)


class LlamaServer:
    """Generates by calls, and answers what exists only behind its HTTP listener.

    Raises:
        ModelLoadFailed: with what a person can act on.
    """

    def __init__(self, plan: ServerConfig) -> None:
        try:
            import xllamacpp
        except ImportError as error:
            raise ModelLoadFailed(f"the llamacpp engine needs xllamacpp: {error}") from error
        library: Any = xllamacpp
        listener = ListenerClient()
        try:
            self._server = library.Server(_build_params(library, plan, listener))
        except RuntimeError as error:
            listener.close()
            named, paths = "MODEL_PATH", str(plan.path)
            if plan.draft_path is not None:
                named, paths = f"{named} or DRAFT_MODEL_PATH", f"{paths} with {plan.draft_path}"
            raise ModelLoadFailed(
                f"{named}: llama.cpp could not load {paths}: the file is damaged or cut short, its "
                "architecture is not supported, or memory ran out (ENGINE_MEMORY_MB)"
            ) from error
        self._listener = listener
        self.slots = CacheSlots(plan.slots)
        # Answered by the server's own loop. Before that has begun, closing it would wait for ever,
        # and with the interpreter's lock held.
        slots = self.ask("/slots")
        if plan.draft_path is not None and not all(slot["speculative"] for slot in slots):
            self.close()
            raise ModelLoadFailed(
                f"DRAFT_MODEL_PATH: {plan.draft_path} cannot draft for {plan.path}: its vocabulary "
                "is another one"
            )

    def complete(self, body: dict[str, Any], on_chunk: Callable[[dict[str, Any]], bool]) -> None:
        """Generate, without holding the interpreter's lock, until done or `on_chunk` says so."""
        self._server.handle_completions(body, on_chunk)

    def embed(self, text: RenderedPrompt) -> tuple[list[float], int]:
        """Return a text's vector and how many tokens it has, however long that takes."""
        answer = self._server.handle_embeddings(
            {"input": text if isinstance(text, str) else [list(text)]}
        )
        if (error := answer.get("error")) is not None:
            failure = to_engine_error(error)
            failure.details.setdefault("param", "input")
            raise failure
        return answer["data"][0]["embedding"], answer["usage"]["prompt_tokens"]

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the listener's answer to a GET, or to a POST of `body`. Raises EngineError."""
        return self._listener.ask(path, body)

    def close(self) -> None:
        """Stop it, free the model and remove its socket."""
        self._server = None
        self._listener.close()


def _build_params(library: Any, plan: ServerConfig, listener: ListenerClient) -> Any:
    params = library.CommonParams()
    params.model.path = str(plan.path)
    params.model_alias = {plan.name}
    # A part of the cache for each slot: with a shared one, neighbours could starve each other.
    params.n_ctx = plan.context * plan.slots
    params.n_parallel = plan.slots
    params.kv_unified = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = plan.threads
    params.n_batch = params.n_ubatch = plan.batch
    params.cache_ram_mib = 0
    params.ui = False
    params.verbosity = -1
    params.hostnames = [listener.path]
    params.api_keys = [listener.key]
    if plan.draft_path is not None:
        params.speculative.types = [
            library.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE
        ]
        draft = params.speculative.draft
        draft.mparams.path = str(plan.draft_path)
        draft.n_max, draft.p_min = plan.draft.tokens, plan.draft.threshold
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = plan.threads
    if plan.vectors:
        params.embedding = True
        if not plan.pooled:
            params.pooling_type = library.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    return params
