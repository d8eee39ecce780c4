"""llama.cpp's server with a loaded model, inside this process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.backends.llamacpp.cache_slots import CacheSlots
from engine.backends.llamacpp.cpu_features import find_slow_build_warning
from engine.backends.llamacpp.listener import ListenerClient, to_engine_error
from engine.backends.lora_adapters import LoraAdapter
from engine.errors import ModelLoadFailed, RequestRejected
from engine.request import RenderedPrompt

logger = logging.getLogger(__name__)

# llama.cpp checks for an abort once per batch. Small batches keep an abort during prefill under a
# second on a slow CPU, at no measured cost in prefill speed.
_BATCH_TOKENS = 64
# llama.cpp computes the tokens of an image together for some models, such as Gemma 3 with 256, and
# ends the process if they are more than a batch. This is its own default.
_IMAGE_BATCH_TOKENS = 512


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """How many tokens a draft model drafts per step, and the probability that each must have."""

    tokens: int
    threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The settings that a server is loaded with.

    `context` is per slot, in tokens. `draft_path` names a draft model, which is used as `draft`
    says. `projector_path` names a projector, which turns images into input of the model.
    `adapters` are the LoRA adapters that requests may use.
    `embeddings` makes the server compute embeddings instead of generating: with the model's own
    pooling if `is_embedding_model`, else with the mean of all tokens' vectors. `reranking` makes
    it score pairs of texts, which needs a reranking model.
    """

    path: Path
    name: str
    context: int
    slots: int
    threads: int
    draft_path: Path | None = None
    draft: DraftConfig = DraftConfig(tokens=5, threshold=0.0)
    projector_path: Path | None = None
    adapters: tuple[LoraAdapter, ...] = ()
    embeddings: bool = False
    is_embedding_model: bool = False
    reranking: bool = False

    @property
    def batch(self) -> int:
        """The number of tokens that are computed together."""
        if self.embeddings or self.reranking:
            # An embedding or a score must be computed in one batch.
            return self.context
        # The drafted tokens of all slots are verified in one batch.
        drafted = self.slots * (self.draft.tokens + 1) if self.draft_path is not None else 0
        minimum = _BATCH_TOKENS if self.projector_path is None else _IMAGE_BATCH_TOKENS
        return max(minimum, drafted)


class LlamaServer:
    """Loads a model; generates by in-process calls and uses the HTTP listener for the rest.

    Raises:
        ModelLoadFailed: with a reason that the operator can act on.
    """

    def __init__(self, config: ServerConfig) -> None:
        try:
            import xllamacpp
        except ImportError as error:
            raise ModelLoadFailed(f"the llamacpp engine needs xllamacpp: {error}") from error
        library: Any = xllamacpp
        if (warning := find_slow_build_warning(library.get_system_info())) is not None:
            logger.warning("%s", warning)
        listener = ListenerClient()
        try:
            self._server = library.Server(_build_params(library, config, listener))
        except RuntimeError as error:
            listener.close()
            if config.adapters:
                *others, last = config.adapters
                # Raises if the model itself or another adapter is the reason.
                LlamaServer(replace(config, adapters=tuple(others))).close()
                raise ModelLoadFailed(
                    f"LORA_ADAPTERS: llama.cpp could not load {last.path} with {config.path}: the "
                    "adapter is for another model, damaged or of an unsupported type, or memory "
                    "ran out (ENGINE_MEMORY_MB)"
                ) from error
            if config.projector_path is not None:
                # Raises if the model itself is the reason.
                LlamaServer(replace(config, projector_path=None)).close()
                raise ModelLoadFailed(
                    f"MMPROJ_PATH: llama.cpp could not load {config.projector_path} with "
                    f"{config.path}: the projector is for another model, damaged or of an "
                    "unsupported type, or memory ran out (ENGINE_MEMORY_MB)"
                ) from error
            settings, paths = "MODEL_PATH", str(config.path)
            if config.draft_path is not None:
                settings += " or DRAFT_MODEL_PATH"
                paths += f" with {config.draft_path}"
            raise ModelLoadFailed(
                f"{settings}: llama.cpp could not load {paths}: the file is damaged or cut short, "
                "its architecture is not supported, or memory ran out (ENGINE_MEMORY_MB)"
            ) from error
        self._listener = listener
        self.slots = CacheSlots(config.slots)
        # The server's main loop answers this request. Closing the server before that loop runs
        # would block forever while holding the GIL.
        slots = self.request("/slots")
        if config.draft_path is not None and not all(slot["speculative"] for slot in slots):
            self.close()
            raise ModelLoadFailed(
                f"DRAFT_MODEL_PATH: {config.draft_path} cannot draft for {config.path}: its "
                "vocabulary is another one"
            )
        # The text that takes the place of an image in a prompt. It is random, so that no client can
        # write it; None without a projector.
        self.image_marker: str | None = None
        if config.projector_path is not None:
            properties = self.request("/props")
            if not properties["modalities"]["vision"]:
                self.close()
                raise ModelLoadFailed(
                    f"MMPROJ_PATH: {config.projector_path} is not a projector for images"
                )
            self.image_marker = properties["media_marker"]

    def complete(
        self,
        body: dict[str, Any],
        on_chunk: Callable[[dict[str, Any]], bool],
        aborted: threading.Event,
    ) -> None:
        """Generate without holding the GIL until done or until `on_chunk` returns True.

        Setting `aborted` ends a call with images, which sends no chunks while they are computed.
        """
        if self.image_marker is None or isinstance(body["prompt"], str):
            self._server.handle_completions(body, on_chunk)
        else:
            # With a projector, the in-process call takes only text.
            body = {**body, "n_probs": body.get("logprobs", 0)}
            self._listener.stream(
                "/completion", body, lambda event: on_chunk(_to_chunk(event)), aborted
            )

    def embed(self, text: RenderedPrompt) -> tuple[list[float], int]:
        """Return a text's embedding and its number of tokens; there is no time limit."""
        answer = self._server.handle_embeddings(
            {"input": text if isinstance(text, str) else [list(text)]}
        )
        if (error := answer.get("error")) is not None:
            failure = to_engine_error(error)
            failure.details.setdefault("param", "input")
            raise failure
        return answer["data"][0]["embedding"], answer["usage"]["prompt_tokens"]

    def rerank(self, query: str, document: str) -> tuple[float, int]:
        """Return a document's score and the number of tokens; there is no time limit."""
        answer = self._server.handle_rerank({"query": query, "documents": [document]})
        if (error := answer.get("error")) is not None:
            failure = to_engine_error(error)
            if isinstance(failure, RequestRejected):
                failure = failure.rename_param("prompt", "document")
            raise failure
        [result] = answer["results"]
        return float(result["relevance_score"]), answer["usage"]["prompt_tokens"]

    def request(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a request to the HTTP listener, see `ListenerClient`. Raises EngineError."""
        return self._listener.request(path, body)

    def close(self) -> None:
        """Stop the server, free its model and remove its socket."""
        self._server = None
        self._listener.close()


def _to_chunk(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event of the listener's own format as a chunk of the in-process call."""
    if "error" in event:
        return event
    choice: dict[str, Any] = {"text": event["content"]}
    if probabilities := event.get("completion_probabilities"):
        choice["logprobs"] = {"content": probabilities}
    return {"choices": [choice], "__verbose": event}


def _build_params(library: Any, config: ServerConfig, listener: ListenerClient) -> Any:
    params = library.CommonParams()
    params.model.path = str(config.path)
    params.model_alias = {config.name}
    # Each slot has its own part of the cache: in a shared cache, slots could starve each other.
    params.n_ctx = config.context * config.slots
    params.n_parallel = config.slots
    params.kv_unified = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = config.threads
    params.n_batch = params.n_ubatch = config.batch
    params.cache_ram_mib = 0
    params.lora_init_without_apply = True
    # The scale 0 is for operations that name no adapter; each completion sets its own scales.
    params.lora_adapters = [
        library.CommonAdapterLoraInfo(str(adapter.path), 0.0) for adapter in config.adapters
    ]
    params.ui = False
    params.verbosity = -1
    params.hostnames = [listener.path]
    params.api_keys = [listener.key]
    if config.draft_path is not None:
        params.speculative.types = [
            library.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE
        ]
        draft = params.speculative.draft
        draft.mparams.path = str(config.draft_path)
        draft.n_max, draft.p_min = config.draft.tokens, config.draft.threshold
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = config.threads
    if config.reranking:
        # As llama.cpp's own --reranking: it does not read the pooling of every architecture.
        params.embedding = True
        params.pooling_type = library.llama_pooling_type.LLAMA_POOLING_TYPE_RANK
    if config.projector_path is not None:
        params.mmproj.path = str(config.projector_path)
    if config.embeddings:
        params.embedding = True
        if not config.is_embedding_model:
            params.pooling_type = library.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    return params
