"""The backend for Rockchip's NPU runtime."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from engine.backends.base import OnPiece, Operations, RunResult, TokenizerInfo
from engine.backends.lora_adapters import LoraAdapter, check_adapters, parse_adapters
from engine.backends.rkllm import library
from engine.backends.rkllm.abi import detect
from engine.backends.rkllm.abi.abi import MissingSymbols, bind
from engine.backends.rkllm.abi.structs import RKLLMInferMode
from engine.backends.rkllm.batching.batch import Batch, BatchedRequest
from engine.backends.rkllm.batching.scheduler import BatchScheduler
from engine.backends.rkllm.board import driver
from engine.backends.rkllm.board.device_lock import open_device, require_device
from engine.backends.rkllm.board.profile import read_profile
from engine.backends.rkllm.checks import check_batch, check_context, check_model, check_vision
from engine.backends.rkllm.embeddings import HiddenStates, Pooling
from engine.backends.rkllm.kv_cache.kv_reuse import KvReuse
from engine.backends.rkllm.logits.setup import build_token_loop, check_logits
from engine.backends.rkllm.model_capabilities import DEFAULT_SAMPLING, build_capabilities
from engine.backends.rkllm.prompts import ChatTokenizer, find_tokenizer_folder, require_tokenizer
from engine.backends.rkllm.recording.open_recorder import open_recorder
from engine.backends.rkllm.recording.recorder import Recorder
from engine.backends.rkllm.reloadable_model import ReloadableModel
from engine.backends.rkllm.runs.inputs import (
    build_embedding_input,
    build_input,
    count_known_tokens,
    require_tokens,
)
from engine.backends.rkllm.runs.open_reasoning import find_closing
from engine.backends.rkllm.runs.run import (
    IMAGE_TAG,
    InitConfig,
    MultimodalPrompt,
    Run,
    RuntimeInput,
)
from engine.backends.rkllm.runs.run_result import (
    build_run_result,
    check_run,
    count_skipped,
)
from engine.backends.rkllm.runtime import Runtime
from engine.backends.rkllm.vision.encoder import VisionEncoder
from engine.backends.rkllm.vision.image_marks import (
    DEFAULT_IMAGE_MARKS,
    DEFAULT_VISION_SIZE,
    parse_image_marks,
)
from engine.backends.rkllm.vision.prompt import build_multimodal_prompt
from engine.capabilities import Capabilities
from engine.errors import BackendFailed, ModelLoadFailed, RequestRejected, UnsupportedParameter
from engine.output import FinishReason, TokenLogprob
from engine.prompts.chat_template import KNOWN_TOKENS
from engine.request import Chat, Prompt, RenderedPrompt, SamplingParams

if TYPE_CHECKING:
    from engine.backends.rkllm.logits.token_loop import TokenLoop

logger = logging.getLogger(__name__)

# The runtime's own default, in tokens.
_DEFAULT_CONTEXT_TOKENS = 4_096


class RkllmBackend:
    """Generates with librkllmrt.so: one model, one run at a time, of up to `n_batch` requests.

    If there are tokenizer files, prompts are rendered and tokenised here and sent as tokens.
    Without them the runtime puts each prompt into its own template as one user turn.

    Args:
        sampling: what to do if the runtime accepts sampling parameters only at init (1.2).
            "fixed" warns about requests that differ; "reload" reloads the model for them.
        lora: the LoRA adapters, in the format of RKLLM_LORA.
        kv_reuse: a prompt that continues the previous prompt and its answer reuses the key-value
            cache instead of being computed from its beginning.
        mode: with "logits" the runtime only computes logits; tokens are sampled here, and each
            prompt is computed completely.
        n_batch: the number of concurrent calls of `run`, which share runs if it is above 1.
        profile: the file with what the doctor measured on this board.
        record: a file to record calls and callbacks of the library to; another one if it exists.
        record_text: whether prompts, answers and token ids are recorded too.
        device_lock: refuse to load while another server uses the NPU.
        device_path: a file to lock instead of the NPU's.
        device_files: descriptors of these files that this server has opened and locked already.
        vision: the .rknn vision encoder of the model, with which messages may have images.
        vision_size: the width and height of the images that it takes, in pixels.
        vision_tokens: the texts around and in an image, in the format of RKLLM_VISION_TOKENS.
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
        n_batch: int = 1,
        profile: str | None = None,
        record: str | None = None,
        record_text: bool = False,
        device_lock: bool = True,
        device_path: str | None = None,
        device_files: Sequence[int] | None = None,
        vision: str | None = None,
        vision_size: int = DEFAULT_VISION_SIZE,
        vision_tokens: str = DEFAULT_IMAGE_MARKS,
    ) -> None:
        self._name = model_name
        self._lib_path = lib_path
        self._abi_setting = abi
        self._can_reload = sampling == "reload"
        self._tokenizer_path = tokenizer
        # The SDK does not document what a batch leaves in the key-value cache of each sequence.
        self._kv_reuse = KvReuse(enabled=kv_reuse and n_batch == 1)
        self._config = InitConfig(
            model=Path(model_path),
            context_length=context_length or _DEFAULT_CONTEXT_TOKENS,
            sampling=DEFAULT_SAMPLING,
            cpu_mask=cpu_mask,
            base_domain_id=base_domain_id,
            n_batch=n_batch,
        )
        self._device_lock = device_lock
        self._device_path = device_path
        self._device_files = device_files
        self._lora = lora
        self._pooling = pooling
        self._mode = mode
        self._profile_path = None if profile is None else Path(profile)
        self._record_path = Path(record) if record is not None else None
        self._records_text = record_text
        self._recorder: Recorder | None = None
        self._token_loop: TokenLoop | None = None
        self._vision_path = None if vision is None else Path(vision)
        self._vision_size = vision_size
        self._image_marks = parse_image_marks(vision_tokens)
        self._vision_encoder: VisionEncoder | None = None
        self._adapters: tuple[LoraAdapter, ...] = ()
        # Serialises runs and embeddings, which another thread computes.
        self._handle_lock = threading.Lock()
        self._lock = threading.Lock()
        self._abort_events: dict[int, threading.Event] = {}
        self._current_run_id: int | None = None
        self._tokenizer: ChatTokenizer | None = None
        self._runtime: Runtime | None = None
        self._model: ReloadableModel | None = None
        self._scheduler: BatchScheduler | None = None

    def load(self) -> Capabilities:
        """Find and inspect the library, then load the model. Raises ModelLoadFailed."""
        config = self._config
        check_model(config.model)
        check_context(config.context_length)
        try:
            self._adapters = parse_adapters(self._lora)
        except ValueError as error:
            raise ModelLoadFailed(f"RKLLM_LORA: {error}") from error
        check_adapters(self._adapters, self._name, "RKLLM_LORA")
        folder = find_tokenizer_folder(config.model, self._tokenizer_path)
        if folder is not None:
            self._tokenizer = ChatTokenizer(folder)
        has_tokenizer = self._tokenizer is not None
        check_batch(config.n_batch, self._mode, has_tokenizer)
        has_template = self._tokenizer is not None and self._tokenizer.has_template
        if self._vision_path is not None:
            check_vision(config.n_batch, self._mode)
            # The runtime takes prompts with images only as text: without a template of its own,
            # it takes a rendered chat as it is.
            config = replace(config, image_marks=self._image_marks, has_raw_prompts=has_template)
        path = library.find_library(self._lib_path)
        driver.check_driver()
        if self._device_lock:
            files = self._device_files
            require_device(open_device(self._device_path) if files is None else files)
        if (cpu_warning := driver.find_cpu_warning(config.cpu_mask)) is not None:
            logger.warning("%s", cpu_warning)
        evidence = detect.inspect_library(path)
        abi = detect.choose_abi(evidence, self._abi_setting)
        if (warning := detect.find_version_warning(evidence, abi)) is not None:
            logger.warning("%s", warning)
        try:
            functions = bind(library.load_library(path), abi)
        except MissingSymbols as error:
            raise ModelLoadFailed(f"RKLLM_LIB_PATH: {path}: {error}") from error
        if self._record_path is not None:
            self._recorder = open_recorder(
                self._record_path,
                texts=self._records_text,
                abi=abi,
                library=path,
                version=evidence.version,
                model=config.model,
            )
        self._runtime = Runtime(functions, abi, self._recorder)
        profile = read_profile(self._profile_path, path, config.model)
        self._kv_reuse.skip_prefixes = profile.prefix_reuse is True and config.n_batch == 1
        description = f"{path}, ABI {abi.name} ({abi.versions_text}): {evidence.describe()}"
        logger.info("%s", description)
        if self._mode == "logits":
            check_logits(abi, profile)
            self._token_loop = build_token_loop(
                self._runtime, self._tokenizer, folder, config.context_length
            )
        self._model = ReloadableModel(
            self._runtime,
            abi,
            config,
            self._adapters,
            can_reload=self._can_reload,
            on_load=self._kv_reuse.reset,
            record_printed=self._recorder.record_printed if self._recorder is not None else None,
        )
        self._model.load()
        if self._vision_path is not None:
            try:
                self._vision_encoder = VisionEncoder(self._vision_path, self._vision_size)
            except ModelLoadFailed:
                # In thread mode the process lives on, and the model would keep its memory.
                self._runtime.close()
                raise
        if config.n_batch > 1:
            self._scheduler = BatchScheduler(config.n_batch, self._run_batch, self._runtime.abort)
        tokenizer = self._tokenizer
        return build_capabilities(
            self._name,
            config.context_length,
            abi,
            description,
            can_reload=self._can_reload,
            has_tokenizer=has_tokenizer,
            has_template=has_template,
            template_markers=(
                tokenizer.markers if tokenizer is not None and tokenizer.rendered_question else None
            ),
            late_system=tokenizer is None or tokenizer.takes_late_system,
            starts_in_reasoning=tokenizer is not None and tokenizer.starts_in_reasoning,
            adapters=[adapter.name for adapter in self._adapters],
            logits=self._token_loop is not None,
            kv_reuse=self._kv_reuse.enabled,
            slots=config.n_batch,
            images=self._vision_encoder is not None,
            control_tokens=self._find_control_tokens(),
            answer_marks=() if tokenizer is None else tokenizer.answer_marks,
            call_form=None if tokenizer is None else tokenizer.call_form,
        )

    def _find_control_tokens(self) -> tuple[str, ...]:
        tokens = KNOWN_TOKENS if self._tokenizer is None else self._tokenizer.control_tokens
        if self._vision_path is not None:
            # The runtime takes these for the place or for the tokens of an image.
            marks = (IMAGE_TAG, *self._image_marks)
            tokens += tuple(mark for mark in marks if mark not in ("", *tokens))
        return tokens

    @property
    def loaded_model(self) -> ReloadableModel:
        """The loaded model. Raises BackendFailed without one."""
        if self._model is None:
            raise BackendFailed("no model is loaded")
        return self._model

    @property
    def operations(self) -> Operations:
        """The operations of this backend beside generation."""
        return {
            "render": self.render,
            "tokenize": self.tokenize,
            "tokenize_text": self.tokenize_text,
            "describe_tokenizer": self.describe_tokenizer,
            "detokenize": self.detokenize,
            "pieces": self.pieces,
            "find_grammar_violation": self.find_grammar_violation,
            "embed": self.embed,
        }

    def render(self, chat: Chat) -> str:
        """Render a chat with the model's template. Raises UnsupportedParameter if it has none."""
        tokenizer = self._tokenizer
        if tokenizer is None or not tokenizer.has_template:
            raise _no_template_error()
        return tokenizer.render(chat)

    def tokenize(self, prompt: str | Chat) -> list[int]:
        """Return token ids as for a prompt. Raises UnsupportedParameter or RequestRejected."""
        tokenizer = require_tokenizer(self._tokenizer)
        if not isinstance(prompt, Chat):
            return tokenizer.encode(prompt, special=True)
        if not tokenizer.has_template:
            raise _no_template_error()
        return tokenizer.encode_chat(prompt)

    def tokenize_text(self, text: str) -> list[int]:
        """Return token ids without special tokens at the start. Raises UnsupportedParameter."""
        return require_tokenizer(self._tokenizer).encode(text, special=False)

    def describe_tokenizer(self, _: str) -> TokenizerInfo:
        """Return what the tokenizer files say. Raises UnsupportedParameter."""
        return require_tokenizer(self._tokenizer).describe()

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids. Raises UnsupportedParameter or RequestRejected."""
        tokenizer = require_tokenizer(self._tokenizer)
        for token in tokens:
            if not tokenizer.has_token(token):
                raise RequestRejected(f"prompt: there is no token {token}")
        return tokenizer.decode(tokens)

    def pieces(self, text: str) -> list[str]:
        """Return the text of each token. Raises UnsupportedParameter."""
        return require_tokenizer(self._tokenizer).pieces(text)

    def find_grammar_violation(self, notation_and_text: tuple[str, str]) -> str | None:
        """Return None: it was tried with the library that follows it."""
        return None

    def embed(self, text: RenderedPrompt) -> tuple[list[float], int]:
        """Return a text's embedding, pooled from the last hidden layer, and its number of tokens.

        Waits for the active run. Raises UnsupportedParameter, RequestRejected or BackendFailed.
        """
        tokens = build_embedding_input(
            text, require_tokenizer(self._tokenizer, "input"), self._config.context_length
        )
        states = HiddenStates(self._pooling)
        if self._scheduler is not None:
            self._scheduler.run_exclusively(lambda: self._compute(tokens, states))
        else:
            with self._handle_lock:
                self._compute(tokens, states)
        return states.embedding(len(tokens)), len(tokens)

    def _compute(self, tokens: list[int], states: HiddenStates) -> None:
        model, runtime = self.loaded_model, self.loaded_model.runtime
        # The key-value cache of a chat must neither affect the embedding nor be extended by it.
        while (
            not runtime.is_loaded or self._kv_reuse.prepare(runtime, tokens, isolated=True) is None
        ):
            model.load()
        try:
            runtime.compute(
                tokens, RKLLMInferMode.RKLLM_INFER_GET_LAST_HIDDEN_LAYER, states.copy_result
            )
        finally:
            # Otherwise vectors in a row become slower and slower (rkllama#139).
            runtime.clear_cache()

    def run(
        self, run_id: int, prompt: Prompt, sampling: SamplingParams, on_piece: OnPiece
    ) -> RunResult:
        """Generate; reload the model first if the sampling parameters require it."""
        model, context = self.loaded_model, self._config.context_length
        with self._lock:
            aborted = self._abort_events.setdefault(run_id, threading.Event())
        try:
            if isinstance(prompt, Chat) and prompt.images:
                with self._handle_lock, self._abortable(run_id):
                    # The NPU computes the images and the answer one after the other.
                    multimodal = self._build_multimodal_prompt(prompt, aborted)
                    return self._run_once(multimodal, sampling, on_piece, aborted)[1]
            runtime_input = build_input(prompt, self._tokenizer, context)
            if self._scheduler is not None:
                tokens, batch_key = require_tokens(runtime_input), model.batch_key(sampling)
                return self._scheduler.run(
                    BatchedRequest(
                        tokens,
                        sampling,
                        context,
                        on_piece,
                        self._end_tokens(sampling),
                        aborted,
                        batch_key,
                    )
                )
            with self._handle_lock, self._abortable(run_id):
                if self._token_loop is not None:
                    tokens = require_tokens(runtime_input)
                    return self._token_loop.run(tokens, sampling, on_piece, aborted)
                return self._run_single(runtime_input, sampling, on_piece, aborted)
        finally:
            with self._lock:
                del self._abort_events[run_id]

    def _build_multimodal_prompt(self, chat: Chat, aborted: threading.Event) -> MultimodalPrompt:
        if self._vision_encoder is None:
            raise UnsupportedParameter(
                "messages: the model is loaded without a vision encoder (RKLLM_VISION)",
                param="messages",
            )
        return build_multimodal_prompt(
            chat,
            self._tokenizer,
            self._config.context_length,
            self._vision_encoder,
            self._image_marks,
            aborted,
        )

    def _run_single(
        self,
        runtime_input: RuntimeInput,
        sampling: SamplingParams,
        on_piece: OnPiece,
        aborted: threading.Event,
    ) -> RunResult:
        if self._tokenizer is None or not isinstance(runtime_input, list):
            return self._run_once(runtime_input, sampling, on_piece, aborted)[1]
        output = bytearray()

        def keep_piece(piece: bytes, token_id: int, logprob: TokenLogprob | None) -> bool:
            output.extend(piece)
            return on_piece(piece, token_id, logprob)

        run, result = self._run_once(runtime_input, sampling, keep_piece, aborted)
        closing = find_closing(run, runtime_input, output.decode(errors="replace"), self._tokenizer)
        if closing is None:
            return result
        for token, piece in closing:
            if on_piece(piece.encode(), token, None):
                return result
        before = [*runtime_input, *run.ids, *(token for token, _ in closing)]
        used = run.tokens + len(closing)
        left = None if sampling.max_tokens is None else sampling.max_tokens - used
        if (left is not None and left <= 0) or len(before) >= self._config.context_length:
            return replace(result, reason=FinishReason.LENGTH, completion_tokens=used)
        _, second = self._run_once(before, replace(sampling, max_tokens=left), on_piece, aborted)
        return replace(
            result,
            reason=second.reason,
            completion_tokens=used + (second.completion_tokens or 0),
            reported_tokens=None,
            callbacks=None,
        )

    def _run_once(
        self,
        runtime_input: RuntimeInput,
        sampling: SamplingParams,
        on_piece: OnPiece,
        aborted: threading.Event,
    ) -> tuple[Run, RunResult]:
        model, runtime = self.loaded_model, self.loaded_model.runtime
        context = self._config.context_length
        reload_ms = model.load_for_sampling(sampling)
        # At the end of the context the runtime would shift its window and continue. Only the
        # runtime knows the length of a text prompt.
        free_tokens = context - count_known_tokens(runtime_input)
        limit = min(sampling.max_tokens or free_tokens, free_tokens)
        # At most two iterations: after returning None, `prepare` no longer reuses the cache.
        while (part := self._kv_reuse.prepare(runtime, runtime_input, lora=sampling.lora)) is None:
            reload_ms += model.load()
        run = runtime.run(
            part.send,
            sampling,
            limit,
            on_piece,
            aborted,
            keep_history=part.keep_history,
            end_tokens=self._end_tokens(sampling),
        )
        self._kv_reuse.record_run(runtime_input, run, context)
        result = build_run_result(run, runtime_input, context, runtime.cache_size)
        reused = count_skipped(run, runtime_input) if part.skips_prefix else part.reused
        return run, replace(result, cached_tokens=reused, reload_ms=reload_ms)

    def _end_tokens(self, sampling: SamplingParams) -> frozenset[int]:
        """Return the tokens that end an answer, as far as they are known."""
        if self._tokenizer is None or sampling.ignore_eos:
            return frozenset()
        return self._tokenizer.end_tokens

    def _run_batch(self, batch: Batch) -> None:
        """Run several requests; called on the scheduler's thread."""
        batch.reload_ms = self.loaded_model.load_for_sampling(batch.sampling)
        self.loaded_model.runtime.run_batch(batch)
        check_run(batch, self._config.context_length)

    @contextmanager
    def _abortable(self, run_id: int) -> Iterator[None]:
        """Let `abort` stop the runtime while it runs this run."""
        with self._lock:
            self._current_run_id = run_id
        try:
            yield
        finally:
            with self._lock:
                self._current_run_id = None

    def abort(self, run_id: int) -> None:
        """Stop the run as soon as the runtime allows it; prefill cannot be interrupted."""
        with self._lock:
            self._abort_events.setdefault(run_id, threading.Event()).set()
            if self._current_run_id == run_id and self._runtime is not None:
                self._runtime.abort()

    def close(self) -> None:
        """Stop the scheduler and free the model."""
        if self._scheduler is not None:
            self._scheduler.close()
        if self._vision_encoder is not None:
            self._vision_encoder.close()
        if self._runtime is not None:
            self._runtime.close()
        if self._recorder is not None:
            self._recorder.close()


def _no_template_error() -> UnsupportedParameter:
    return UnsupportedParameter(
        "messages: there is no chat template beside the model (RKLLM_TOKENIZER)", param="messages"
    )
