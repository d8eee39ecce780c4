"""Rockchip's NPU runtime as a backend of the engine."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

from engine.backends.base import OnPiece, RunEnd
from engine.backends.rkllm import detect, driver, library
from engine.backends.rkllm.abi import MissingSymbols, bind
from engine.backends.rkllm.prompts import ChatTokenizer, folder_for
from engine.backends.rkllm.runtime import Run, Runtime, Setup, Turn
from engine.capabilities import Capabilities
from engine.errors import (
    BackendFailed,
    ModelLoadFailed,
    PromptTooLong,
    RequestRejected,
    UnsupportedParameter,
)
from engine.output import FinishReason
from engine.request import Chat, Prompt, SamplingParams

logger = logging.getLogger(__name__)

# The SDK's manual: a context of up to 16384 tokens, a multiple of 32.
_MAX_CONTEXT = 16_384
_CONTEXT_STEP = 32
# What the runtime itself would take for no length at all.
_DEFAULT_CONTEXT = 4_096
# More than any vocabulary has; how many tokens this one has, only a tokenizer tells.
_MAX_TOKEN_ID = 2**20 - 1
_MAX_MS = 1e9
# Sampling that is fixed at the load (R49's defaults, so that plain jobs get what they ask for).
FIXED = SamplingParams(temperature=0.7, top_p=0.9, top_k=50)
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)


class RkllmBackend:
    """librkllmrt.so: one model, one run at a time.

    Where tokenizer files are there, prompts are rendered and tokenised here and sent as tokens;
    without them the runtime puts one user's turn into its own template. `sampling` says what to do
    where the runtime takes sampling at init only (1.2): "fixed" warns of requests that differ,
    "reload" loads the model again for them. Runs come one at a time, on one thread; `abort` may be
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
    ) -> None:
        self._name = model_name
        self._lib_path = lib_path
        self._asked_abi = abi
        self._reloads = sampling == "reload"
        self._tokenizer_path = tokenizer
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
        try:
            functions = bind(library.load(path), abi)
        except MissingSymbols as error:
            raise ModelLoadFailed(f"RKLLM_LIB_PATH: {path}: {error}") from error
        self._runtime = Runtime(functions, abi)
        found = f"{path}, ABI {abi.name} ({abi.versions}): {evidence.told()}"
        logger.info("%s", found)
        self._init(setup)
        per_run = abi.sampling_per_run or self._reloads
        tokenizer = self._tokenizer
        return Capabilities(
            backend="rkllm",
            model=self._name,
            context_length=setup.context_length,
            fixed_sampling={} if per_run else {name: getattr(FIXED, name) for name in _SAMPLING},
            min_p=False,
            seed=False,
            ignore_eos=abi.sampling_per_run and self._reloads,
            token_prompts=True,
            chat_template=True,
            turns=tokenizer is not None and tokenizer.has_template,
            plain_prompts=tokenizer is not None,
            tokenize=tokenizer is not None,
            runtime=found,
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
        if self._tokenizer is None:
            raise UnsupportedParameter(
                "prompt: there is no tokenizer.json beside the model (RKLLM_TOKENIZER)",
                param="prompt",
            )
        return self._tokenizer.encode(text, special=True)

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
            given = self._prepared(prompt)
            reload_ms = self._reload_for(sampling)
            # The runtime would shift its window and go on (R8). How long a text is, only it knows.
            room = self._setup.context_length - (len(given) if isinstance(given, list) else 0)
            limit = min(sampling.max_tokens or room, room)
            run = runtime.run(given, sampling, limit, on_piece, aborted)
        finally:
            with self._lock:
                self._current = None
                del self._aborted[run_id]
        return self._end(run, given, reload_ms)

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

    def _prepared(self, prompt: Prompt) -> Turn | list[int]:
        given = self._given(prompt)
        room = self._setup.context_length
        if not given:
            raise RequestRejected("prompt: there must be at least one token")
        if isinstance(given, list) and len(given) >= room:
            raise PromptTooLong(
                f"prompt: {len(given)} tokens do not fit the context of {room} tokens",
                prompt_tokens=len(given),
                context_length=room,
            )
        return given

    def _given(self, prompt: Prompt) -> Turn | list[int]:
        tokenizer = self._tokenizer
        if isinstance(prompt, tuple):
            known = tokenizer.has_token if tokenizer is not None else _may_be_token
            for token in prompt:
                if not known(token):
                    raise RequestRejected(f"prompt: there is no token {token}")
            return list(prompt)
        if tokenizer is not None:
            if isinstance(prompt, str):
                return tokenizer.encode(prompt, special=True)
            if tokenizer.has_template:
                return tokenizer.encode(tokenizer.render(prompt), special=False)
        if isinstance(prompt, str):
            return _turn(prompt)
        return _turn(in_one_turn(prompt), thinking=prompt.template_kwargs.get("enable_thinking"))

    def _reload_for(self, sampling: SamplingParams) -> float:
        """Load the model again if this sampling needs it; return how long that took, in ms."""
        runtime, setup = self._runtime, self._setup
        assert runtime is not None  # noqa: S101 - loaded before it runs
        wanted = setup.sampling
        if self._reloads and not self._abi.sampling_per_run:
            wanted = replace(wanted, **{name: getattr(sampling, name) for name in _SAMPLING})
        if self._reloads and self._abi.sampling_per_run:
            wanted = replace(wanted, ignore_eos=sampling.ignore_eos)
        if wanted == setup.sampling and runtime.ready:
            return 0.0
        started = time.monotonic()
        logger.info("the model is loaded again for other sampling parameters")
        self._init(replace(setup, sampling=wanted))
        return (time.monotonic() - started) * 1000

    def _end(self, run: Run, given: Turn | list[int], reload_ms: float) -> RunEnd:
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
            prompt_tokens = max(self._runtime.cached_tokens() - run.tokens, 0)
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


def in_one_turn(chat: Chat) -> str:
    """Return a whole conversation as the text of one user's turn.

    What is left where the runtime takes one turn and the model's template is not at hand: nothing
    is dropped, though the model has not been trained to read it like this.
    """
    turns = chat.messages
    if len(turns) == 1:
        return turns[0].content
    labelled = [f"{_LABELS.get(turn.role, turn.role.title())}: {turn.content}" for turn in turns]
    return "\n\n".join([*labelled, "Assistant:"])


_LABELS = {"developer": "System"}


def _may_be_token(number: int) -> bool:
    return 0 <= number <= _MAX_TOKEN_ID


def _turn(text: str, *, thinking: object = None) -> Turn:
    if "\0" in text:
        raise RequestRejected("prompt: a zero character would end it early for the RKLLM runtime")
    return Turn(text, enable_thinking=thinking is True)


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
