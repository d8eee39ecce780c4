"""Rockchip's NPU runtime as a backend of the engine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from engine.backends.base import OnPiece, RunResult
from engine.backends.rkllm import detect, driver, library
from engine.backends.rkllm.abi import MissingSymbols, bind
from engine.backends.rkllm.batch import Batch, BatchedRequest
from engine.backends.rkllm.batched_requests import BatchScheduler
from engine.backends.rkllm.checks import check_batch, check_context, check_model
from engine.backends.rkllm.embeddings import HiddenStates, Pooling
from engine.backends.rkllm.history import KvReuse
from engine.backends.rkllm.inputs import (
    RuntimeInput,
    build_embedding_input,
    build_input,
    require_tokens,
)
from engine.backends.rkllm.logits_mode import build_token_loop
from engine.backends.rkllm.lora_adapters import LoraAdapter, check_adapters, parse_adapters
from engine.backends.rkllm.model import ReloadableModel
from engine.backends.rkllm.model_capabilities import DEFAULT_SAMPLING, build_capabilities
from engine.backends.rkllm.prompt_caches import PromptCaches
from engine.backends.rkllm.prompts import ChatTokenizer, folder_for, known
from engine.backends.rkllm.run_result import check_end, end_of
from engine.backends.rkllm.runtime import Runtime, Setup
from engine.backends.rkllm.structs import RKLLMInferMode
from engine.capabilities import Capabilities
from engine.errors import BackendFailed, ModelLoadFailed, RequestRejected, UnsupportedParameter
from engine.request import Chat, Prompt, RenderedPrompt, SamplingParams

if TYPE_CHECKING:
    from engine.backends.rkllm.token_loop import Stepwise

logger = logging.getLogger(__name__)

# What the runtime itself would take for no length at all.
_DEFAULT_CONTEXT = 4_096


class RkllmBackend:
    """librkllmrt.so: one model, one run at a time, of one request or of up to `n_batch` of them.

    Where tokenizer files are there, prompts are rendered and tokenised here and sent as tokens;
    without them the runtime puts one user's turn into its own template. `sampling` says what to do
    where the runtime takes sampling at init only (1.2): "fixed" warns of requests that differ,
    "reload" loads the model again for them. `lora` are its adapters, as RKLLM_LORA names them. With
    `kv_reuse`, a prompt of tokens that goes on where the last one and its answer ended is not read
    again from its beginning; `prompt_caches` is a folder for those that requests name. With a
    `mode` of "logits" the runtime only computes, every token is chosen here, and each prompt is
    read whole. With an `n_batch` above 1 as many calls of `run` are under way at a time, and share
    runs; without, they come one at a time. `abort` may be called from any thread.
    """

    def __init__(
        self,
        model_path: str,
        model_name: str,
        context_length: int = 0,
        *,
        lib_path: str | None = None,
        abi: str = "auto",
        sampling: Literal["fixed", "reload"] = "fixed",
        tokenizer: str | None = None,
        cpu_mask: int = 0,
        base_domain_id: int = 0,
        lora: str = "",
        pooling: Pooling = "last",
        mode: Literal["generate", "logits"] = "generate",
        kv_reuse: bool = True,
        prompt_caches: str | None = None,
        n_batch: int = 1,
    ) -> None:
        self._name = model_name
        self._lib_path = lib_path
        self._asked_abi = abi
        self._reloads = sampling == "reload"
        self._tokenizer_path = tokenizer
        self._caches = PromptCaches(prompt_caches, Path(model_path))
        # What a batch leaves in the cache of each place is written nowhere.
        self._history = KvReuse(self._caches, on=kv_reuse and n_batch == 1)
        self._setup = Setup(
            model=Path(model_path),
            context_length=context_length or _DEFAULT_CONTEXT,
            sampling=DEFAULT_SAMPLING,
            cpu_mask=cpu_mask,
            base_domain_id=base_domain_id,
            n_batch=n_batch,
        )
        self._lora = lora
        self._pooling = pooling
        self._mode = mode
        self._stepwise: Stepwise | None = None
        self._adapters: tuple[LoraAdapter, ...] = ()
        # Around whatever runs on the handle: a vector is asked for beside the runs.
        self._running = threading.Lock()
        self._lock = threading.Lock()
        self._aborted: dict[int, threading.Event] = {}
        self._current: int | None = None
        self._tokenizer: ChatTokenizer | None = None
        self._runtime: Runtime | None = None
        self._model: ReloadableModel | None = None
        self._batches: BatchScheduler | None = None

    def load(self) -> Capabilities:
        """Find and examine the library, load the model. Raises ModelLoadFailed."""
        setup = self._setup
        check_model(setup.model)
        check_context(setup.context_length)
        try:
            self._adapters = parse_adapters(self._lora)
        except ValueError as error:
            raise ModelLoadFailed(f"RKLLM_LORA: {error}") from error
        check_adapters(self._adapters, self._name)
        folder = folder_for(setup.model, self._tokenizer_path)
        if folder is not None:
            self._tokenizer = ChatTokenizer(folder)
        check_batch(setup.n_batch, self._mode, self._caches.on, self._tokenizer is not None)
        path = library.find_library(self._lib_path)
        driver.check_driver()
        evidence = detect.inspect_library(path)
        abi = detect.choose_abi(evidence, self._asked_abi)
        self._caches.open(abi.name, self._adapters)
        try:
            functions = bind(library.load_library(path), abi)
        except MissingSymbols as error:
            raise ModelLoadFailed(f"RKLLM_LIB_PATH: {path}: {error}") from error
        self._runtime = Runtime(functions, abi)
        found = f"{path}, ABI {abi.name} ({abi.versions}): {evidence.told()}"
        logger.info("%s", found)
        if self._mode == "logits":
            self._stepwise = build_token_loop(
                self._runtime, self._tokenizer, folder, setup.context_length
            )
        self._model = ReloadableModel(
            self._runtime,
            abi,
            setup,
            self._adapters,
            reloads=self._reloads,
            on_load=self._history.forget,
        )
        self._model.load()
        if setup.n_batch > 1:
            self._batches = BatchScheduler(setup.n_batch, self._run_batch, self._runtime.abort)
        tokenizer = self._tokenizer
        return build_capabilities(
            self._name,
            setup.context_length,
            abi,
            found,
            reloads=self._reloads,
            tokenizes=tokenizer is not None,
            renders=tokenizer is not None and tokenizer.has_template,
            template_markers=(
                tokenizer.markers if tokenizer is not None and tokenizer.rendered_question else None
            ),
            opens_thoughts=tokenizer is not None and tokenizer.opens_thoughts,
            adapters=[adapter.name for adapter in self._adapters],
            logits=self._stepwise is not None,
            reuses=self._history.on,
            prompt_caches=self._caches.on,
            slots=setup.n_batch,
        )

    @property
    def _loaded(self) -> ReloadableModel:
        if self._model is None:
            raise BackendFailed("no model is loaded")
        return self._model

    def render(self, chat: Chat) -> str:
        """Return the prompt the model's template makes. Raises UnsupportedParameter without one."""
        tokenizer = self._tokenizer
        if tokenizer is None or not tokenizer.has_template:
            raise UnsupportedParameter(
                "messages: there is no chat template beside the model (RKLLM_TOKENIZER)",
                param="messages",
            )
        return tokenizer.render(chat)

    def tokenize(self, text: str) -> list[int]:
        """Return token ids, as of a plain prompt. Raises UnsupportedParameter."""
        return known(self._tokenizer).encode(text, special=True)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids. Raises UnsupportedParameter or RequestRejected."""
        tokenizer = known(self._tokenizer)
        for token in tokens:
            if not tokenizer.has_token(token):
                raise RequestRejected(f"prompt: there is no token {token}")
        return tokenizer.decode(tokens)

    def pieces(self, text: str) -> list[str]:
        """Return the text of each token. Raises UnsupportedParameter."""
        return known(self._tokenizer).pieces(text)

    def infill(self, around: tuple[str, str]) -> str:
        """Refuse: nothing tells how the model was trained to do it. Raises UnsupportedParameter."""
        raise UnsupportedParameter("suffix: the rkllm engine cannot fill gaps", param="suffix")

    def embed(self, text: RenderedPrompt) -> tuple[list[float], int]:
        """Return a text's vector, pooled from the last layer, and how many tokens it has.

        Waits for a run that is under way. Raises UnsupportedParameter, RequestRejected or
        BackendFailed.
        """
        tokens = build_embedding_input(
            text, known(self._tokenizer, "input"), self._setup.context_length
        )
        states = HiddenStates(self._pooling)
        if self._batches is not None:
            self._batches.alone(lambda: self._compute(tokens, states))
        else:
            with self._running:
                self._compute(tokens, states)
        return states.vector(len(tokens)), len(tokens)

    def _compute(self, tokens: list[int], states: HiddenStates) -> None:
        model, runtime = self._loaded, self._loaded.runtime
        # What it leaves in the key-value cache, or takes from it, is of no chat.
        while not runtime.ready or self._history.begin(runtime, tokens, alone=True) is None:
            model.load()
        runtime.compute(tokens, RKLLMInferMode.RKLLM_INFER_GET_LAST_HIDDEN_LAYER, states.take)

    def run(
        self, run_id: int, prompt: Prompt, sampling: SamplingParams, on_piece: OnPiece
    ) -> RunResult:
        """Generate; loads the model again first where that is what the sampling takes."""
        model, context = self._loaded, self._setup.context_length
        with self._lock:
            aborted = self._aborted.setdefault(run_id, threading.Event())
        try:
            given = build_input(prompt, self._tokenizer, context)
            if self._batches is not None:
                shares = model.shares(sampling)
                return self._batches.run(
                    BatchedRequest(
                        require_tokens(given), sampling, context, on_piece, aborted, shares
                    )
                )
            with self._running, self._abortable(run_id):
                if self._stepwise is not None:
                    return self._stepwise.run(require_tokens(given), sampling, on_piece, aborted)
                return self._run_alone(given, sampling, on_piece, aborted)
        finally:
            with self._lock:
                del self._aborted[run_id]

    def _run_alone(
        self,
        given: RuntimeInput,
        sampling: SamplingParams,
        on_piece: OnPiece,
        aborted: threading.Event,
    ) -> RunResult:
        model, runtime, context = self._loaded, self._loaded.runtime, self._setup.context_length
        reload_ms = model.load_for(sampling)
        # The runtime would shift its window and go on (R8). How long a text is, only it knows.
        room = context - (len(given) if isinstance(given, list) else 0)
        limit = min(sampling.max_tokens or room, room)
        cache = self._caches.path(sampling.prompt_cache, sampling.lora)
        # Twice at most: nothing is kept any more where it is None.
        while (
            part := self._history.begin(runtime, given, lora=sampling.lora, cache=cache)
        ) is None:
            reload_ms += model.load()
        run = runtime.run(
            part.send, sampling, limit, on_piece, aborted, keep=part.keep, save_to=part.save_to
        )
        self._history.end(given, cache, run, context)
        end = end_of(run, given, context, runtime.cache_size)
        return replace(end, cached_tokens=part.reused, reload_ms=reload_ms)

    def _run_batch(self, batch: Batch) -> None:
        """Run several requests; called by the thread that batches have."""
        batch.reload_ms = self._loaded.load_for(batch.sampling)
        self._loaded.runtime.run_batch(batch)
        check_end(batch, self._setup.context_length)

    @contextmanager
    def _abortable(self, run_id: int) -> Iterator[None]:
        """Let an abort reach the runtime for as long as this run is what it runs."""
        with self._lock:
            self._current = run_id
        try:
            yield
        finally:
            with self._lock:
                self._current = None

    def abort(self, run_id: int) -> None:
        """Make the run end as soon as the runtime lets it: prefill cannot be interrupted."""
        with self._lock:
            self._aborted.setdefault(run_id, threading.Event()).set()
            if self._current == run_id and self._runtime is not None:
                self._runtime.abort()

    def close(self) -> None:
        """Destroy the handle, once."""
        if self._batches is not None:
            self._batches.close()
        if self._runtime is not None:
            self._runtime.close()
