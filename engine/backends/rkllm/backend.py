"""Rockchip's NPU runtime as a backend of the engine."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from engine.backends.base import OnPiece, RunEnd
from engine.backends.rkllm import detect, driver, library
from engine.backends.rkllm.abi import MissingSymbols, bind
from engine.backends.rkllm.claims import FIXED, SAMPLING, claims
from engine.backends.rkllm.history import History
from engine.backends.rkllm.inputs import Input, input_for
from engine.backends.rkllm.prompt_caches import PromptCaches
from engine.backends.rkllm.prompts import ChatTokenizer, folder_for
from engine.backends.rkllm.runtime import Run, Runtime, Setup
from engine.capabilities import Capabilities
from engine.errors import (
    BackendFailed,
    ModelLoadFailed,
    RequestRejected,
    UnsupportedParameter,
)
from engine.output import FinishReason
from engine.request import Chat, Prompt, RenderedPrompt, SamplingParams

logger = logging.getLogger(__name__)

# The SDK's manual: a context of up to 16384 tokens, a multiple of 32.
_MAX_CONTEXT = 16_384
_CONTEXT_STEP = 32
# What the runtime itself would take for no length at all.
_DEFAULT_CONTEXT = 4_096
_MAX_MS = 1e9


class RkllmBackend:
    """librkllmrt.so: one model, one run at a time.

    Where tokenizer files are there, prompts are rendered and tokenised here and sent as tokens;
    without them the runtime puts one user's turn into its own template. `sampling` says what to do
    where the runtime takes sampling at init only (1.2): "fixed" warns of requests that differ,
    "reload" loads the model again for them. With `kv_reuse`, a prompt of tokens that goes on where
    the last one and its answer ended is not read again from its beginning; `prompt_caches` is a
    folder for those that requests name. Runs come one at a time, on one thread; `abort` may be
    called from any.
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
        kv_reuse: bool = True,
        prompt_caches: str | None = None,
    ) -> None:
        self._name = model_name
        self._lib_path = lib_path
        self._asked_abi = abi
        self._reloads = sampling == "reload"
        self._tokenizer_path = tokenizer
        self._caches = PromptCaches(prompt_caches, Path(model_path))
        self._history = History(self._caches, on=kv_reuse)
        self._setup = Setup(
            model=Path(model_path),
            context_length=context_length or _DEFAULT_CONTEXT,
            sampling=FIXED,
            cpu_mask=cpu_mask,
            base_domain_id=base_domain_id,
        )
        self._lock = threading.Lock()
        self._aborted: dict[int, threading.Event] = {}
        self._current: int | None = None
        self._tokenizer: ChatTokenizer | None = None
        self._runtime: Runtime | None = None

    def load(self) -> Capabilities:
        """Find and examine the library, load the model. Raises ModelLoadFailed."""
        setup = self._setup
        _check_model(setup.model)
        _check_context(setup.context_length)
        folder = folder_for(setup.model, self._tokenizer_path)
        if folder is not None:
            self._tokenizer = ChatTokenizer(folder)
        path = library.find(self._lib_path)
        driver.check()
        evidence = detect.examine(path)
        abi = detect.choose(evidence, self._asked_abi)
        self._abi = abi
        self._caches.open(abi.name)
        try:
            functions = bind(library.load(path), abi)
        except MissingSymbols as error:
            raise ModelLoadFailed(f"RKLLM_LIB_PATH: {path}: {error}") from error
        self._runtime = Runtime(functions, abi)
        found = f"{path}, ABI {abi.name} ({abi.versions}): {evidence.told()}"
        logger.info("%s", found)
        self._init(setup)
        tokenizer = self._tokenizer
        return claims(
            self._name,
            setup.context_length,
            abi,
            found,
            reloads=self._reloads,
            tokenizes=tokenizer is not None,
            renders=tokenizer is not None and tokenizer.has_template,
            prompt_caches=self._caches.on,
        )

    def _init(self, setup: Setup) -> None:
        assert self._runtime is not None  # noqa: S101 - only called once it is there
        try:
            self._runtime.init(setup)
        except ModelLoadFailed as error:
            raise ModelLoadFailed(
                f"MODEL_PATH: {setup.model} was not loaded: {error}. The model must be converted "
                "for this chip and for a runtime of this version, fit into memory, and have a "
                f"context of {setup.context_length} tokens (CONTEXT_LENGTH); {driver.told()}"
            ) from error
        self._setup = setup
        self._history.forget()

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
        return self._known_tokenizer().encode(text, special=True)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids. Raises UnsupportedParameter or RequestRejected."""
        tokenizer = self._known_tokenizer()
        for token in tokens:
            if not tokenizer.has_token(token):
                raise RequestRejected(f"prompt: there is no token {token}")
        return tokenizer.decode(tokens)

    def pieces(self, text: str) -> list[str]:
        """Return the text of each token. Raises UnsupportedParameter."""
        return self._known_tokenizer().pieces(text)

    def _known_tokenizer(self) -> ChatTokenizer:
        if self._tokenizer is None:
            raise UnsupportedParameter(
                "prompt: there is no tokenizer.json beside the model (RKLLM_TOKENIZER)",
                param="prompt",
            )
        return self._tokenizer

    def infill(self, around: tuple[str, str]) -> str:
        """Refuse: nothing tells how the model was trained to do it. Raises UnsupportedParameter."""
        raise UnsupportedParameter("suffix: the rkllm engine cannot fill gaps", param="suffix")

    def embed(self, text: RenderedPrompt) -> tuple[list[float], int]:
        """Refuse: the runtime is loaded to generate. Raises UnsupportedParameter."""
        raise UnsupportedParameter("input: the rkllm engine has no embeddings", param="input")

    def run(
        self, run_id: int, prompt: Prompt, sampling: SamplingParams, on_piece: OnPiece
    ) -> RunEnd:
        """Generate; loads the model again first where that is what the sampling takes."""
        runtime = self._runtime
        assert runtime is not None  # noqa: S101 - loaded before it runs
        with self._lock:
            aborted = self._aborted.setdefault(run_id, threading.Event())
            self._current = run_id
        try:
            given = input_for(prompt, self._tokenizer, self._setup.context_length)
            reload_ms = self._reload_for(sampling)
            # The runtime would shift its window and go on (R8). How long a text is, only it knows.
            room = self._setup.context_length - (len(given) if isinstance(given, list) else 0)
            limit = min(sampling.max_tokens or room, room)
            name = sampling.prompt_cache if self._caches.on else None
            # Twice at most: nothing is kept any more where it is None.
            while (part := self._history.begin(runtime, given, name)) is None:
                reload_ms += self._load(self._setup)
            send, reused, keep, save_to = part
            run = runtime.run(send, sampling, limit, on_piece, aborted, keep=keep, save_to=save_to)
            self._history.end(given, name, run, self._setup.context_length)
        finally:
            with self._lock:
                self._current = None
                del self._aborted[run_id]
        end = self._end(run, given, reload_ms)
        return replace(end, cached_tokens=reused)

    def abort(self, run_id: int) -> None:
        """Make the run end as soon as the runtime lets it: prefill cannot be interrupted."""
        with self._lock:
            self._aborted.setdefault(run_id, threading.Event()).set()
            current = self._current == run_id
        if current and self._runtime is not None:
            self._runtime.abort()

    def close(self) -> None:
        """Destroy the handle, once."""
        if self._runtime is not None:
            self._runtime.close()

    def _reload_for(self, sampling: SamplingParams) -> float:
        """Load the model again if this sampling needs it; return how long that took, in ms."""
        runtime, setup = self._runtime, self._setup
        assert runtime is not None  # noqa: S101 - loaded before it runs
        wanted = setup.sampling
        if self._reloads and not self._abi.sampling_per_run:
            wanted = replace(wanted, **{name: getattr(sampling, name) for name in SAMPLING})
        if self._reloads and self._abi.sampling_per_run:
            wanted = replace(wanted, ignore_eos=sampling.ignore_eos)
        if wanted == setup.sampling and runtime.ready:
            return 0.0
        logger.info("the model is loaded again for other sampling parameters")
        return self._load(replace(setup, sampling=wanted))

    def _load(self, setup: Setup) -> float:
        """Load the model in place of the one that is loaded; return how long it took, in ms."""
        started = time.monotonic()
        self._init(setup)
        return (time.monotonic() - started) * 1000

    def _end(self, run: Run, given: Input, reload_ms: float) -> RunEnd:
        # What becomes of an abort takes nothing from an answer that is complete.
        if (run.failed or run.code) and not run.stopped:
            said = f"rkllm_run answered {run.code}" if run.code else "it reported an error"
            raise BackendFailed(
                f"the RKLLM runtime failed and gave no reason ({said}); a prompt or answer that "
                f"does not fit the context of {self._setup.context_length} tokens is one"
            )
        if not run.finished and not run.stopped:
            raise BackendFailed("the RKLLM runtime ended the run without saying that it was done")
        assert self._runtime is not None  # noqa: S101 - it has just run
        if isinstance(given, list):
            prompt_tokens = len(given)
        elif run.finished:
            prompt_tokens = max(run.prefill_tokens, 0)
        else:
            prompt_tokens = max((self._runtime.cache_size() or 0) - run.tokens, 0)
        # One less is how a runtime of 1.3.1 was seen to count.
        if run.finished and not 0 <= run.tokens - run.generate_tokens <= 1:
            logger.warning(
                "the runtime counts %d tokens and called back for %d",
                run.generate_tokens,
                run.tokens,
            )
        tokens = min(run.tokens, run.limit)
        full = prompt_tokens + tokens >= self._setup.context_length
        return RunEnd(
            reason=FinishReason.LENGTH if full else FinishReason.STOP,
            prompt_tokens=prompt_tokens,
            completion_tokens=tokens,
            reported_tokens=run.generate_tokens if run.finished else None,
            callbacks=run.tokens,
            # Also where it is no number, which max does not take.
            prefill_ms=min(max(0.0, run.prefill_ms), _MAX_MS),
            reload_ms=reload_ms,
        )


def _check_model(path: Path) -> None:
    if not path.name:
        raise ModelLoadFailed("MODEL_PATH must name a .rkllm model: there is no default one")
    if not path.exists():
        raise ModelLoadFailed(f"MODEL_PATH: there is no file {path}")
    if not path.is_file():
        raise ModelLoadFailed(f"MODEL_PATH: {path} is not a file")
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise ModelLoadFailed(f"MODEL_PATH: {path} is empty")
    except OSError as error:
        raise ModelLoadFailed(f"MODEL_PATH: {path} cannot be read: {error.strerror}") from error


def _check_context(tokens: int) -> None:
    if tokens % _CONTEXT_STEP or tokens > _MAX_CONTEXT:
        raise ModelLoadFailed(
            f"CONTEXT_LENGTH must be a multiple of {_CONTEXT_STEP} and at most {_MAX_CONTEXT} for "
            f"the RKLLM runtime, got {tokens}"
        )
