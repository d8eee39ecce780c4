"""A model that the NPU runtime has loaded, the parts that its options ask for, and its runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.backends.base import OnPiece, RunResult
from engine.backends.lora_adapters import LoraAdapter
from engine.backends.rkllm.abi.structs import RKLLMInferMode
from engine.backends.rkllm.batching.batch import Batch
from engine.backends.rkllm.kv_cache.kv_reuse import KvReuse
from engine.backends.rkllm.logits.reranker import Reranker
from engine.backends.rkllm.printed.library_output import CapturedOutput
from engine.backends.rkllm.recording.recorder import Recorder
from engine.backends.rkllm.reloadable_model import ReloadableModel
from engine.backends.rkllm.runs.inputs import count_known_tokens
from engine.backends.rkllm.runs.open_reasoning import find_closing
from engine.backends.rkllm.runs.run import (
    IMAGE_TAG,
    ImageMarks,
    MultimodalPrompt,
    Run,
    RuntimeInput,
)
from engine.backends.rkllm.runs.run_result import (
    build_run_result,
    check_printed,
    check_run,
    is_output_needed,
)
from engine.backends.rkllm.runtime import Runtime
from engine.backends.rkllm.tokenizer import ChatTokenizer
from engine.backends.rkllm.vision.encoder import VisionEncoder
from engine.backends.rkllm.vision.prompt import build_multimodal_prompt
from engine.errors import BackendFailed, UnsupportedParameter
from engine.output import FinishReason, TokenLogprob
from engine.prompts.chat_template import KNOWN_TOKENS
from engine.request import Chat, SamplingParams

if TYPE_CHECKING:
    from engine.backends.rkllm.logits.token_loop import TokenLoop


@dataclass(frozen=True, slots=True)
class Vision:
    """The encoder of images, and the texts that mark an image in a prompt."""

    encoder: VisionEncoder
    marks: ImageMarks


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """Runs one model, one run at a time; made by `load_model`.

    Without tokenizer files there is no `tokenizer`. In logits mode a reranking model has a
    `reranker`, and every other model a `token_loop`. `vision` is there with an encoder, and
    `recorder` with a file to record to. The caller holds the handle's lock during each method that
    runs something.
    """

    handle: ReloadableModel
    context_length: int
    kv_reuse: KvReuse
    adapters: tuple[LoraAdapter, ...]
    tokenizer: ChatTokenizer | None
    token_loop: TokenLoop | None
    reranker: Reranker | None
    vision: Vision | None
    recorder: Recorder | None

    @property
    def runtime(self) -> Runtime:
        """The runtime with the model."""
        return self.handle.runtime

    @property
    def control_tokens(self) -> tuple[str, ...]:
        """The special tokens that a message must not contain as such."""
        tokens = KNOWN_TOKENS if self.tokenizer is None else self.tokenizer.control_tokens
        if self.vision is not None:
            # The runtime takes these for the place or for the tokens of an image.
            marks = (IMAGE_TAG, *self.vision.marks)
            tokens += tuple(mark for mark in marks if mark not in ("", *tokens))
        return tokens

    def end_tokens(self, sampling: SamplingParams) -> frozenset[int]:
        """Return the tokens that end an answer, as far as they are known."""
        if self.tokenizer is None or sampling.ignore_eos:
            return frozenset()
        return self.tokenizer.end_tokens

    def build_multimodal_prompt(self, chat: Chat, aborted: threading.Event) -> MultimodalPrompt:
        """Return the prompt of a chat with images. Raises UnsupportedParameter without encoder."""
        if self.vision is None:
            raise UnsupportedParameter(
                "messages: the model is loaded without a vision encoder (RKLLM_VISION)",
                param="messages",
            )
        return build_multimodal_prompt(
            chat,
            self.tokenizer,
            self.context_length,
            self.vision.encoder,
            self.vision.marks,
            aborted,
        )

    def run(
        self,
        runtime_input: RuntimeInput,
        sampling: SamplingParams,
        on_piece: OnPiece,
        aborted: threading.Event,
    ) -> RunResult:
        """Generate; if the runtime ends the answer with its reasoning, go on behind it."""
        tokenizer = self.tokenizer
        if tokenizer is None or not isinstance(runtime_input, list):
            return self.run_once(runtime_input, sampling, on_piece, aborted)[1]
        output = bytearray()

        def keep_piece(piece: bytes, token_id: int, logprob: TokenLogprob | None) -> bool:
            output.extend(piece)
            return on_piece(piece, token_id, logprob)

        run, result = self.run_once(runtime_input, sampling, keep_piece, aborted)
        closing = find_closing(run, runtime_input, output.decode(errors="replace"), tokenizer)
        if closing is None:
            return result
        for token, piece in closing:
            if on_piece(piece.encode(), token, None):
                return result
        before = [*runtime_input, *run.ids, *(token for token, _ in closing)]
        used = run.tokens + len(closing)
        left = None if sampling.max_tokens is None else sampling.max_tokens - used
        if (left is not None and left <= 0) or len(before) >= self.context_length:
            return replace(result, reason=FinishReason.LENGTH, completion_tokens=used)
        _, second = self.run_once(before, replace(sampling, max_tokens=left), on_piece, aborted)
        return replace(
            result,
            reason=second.reason,
            completion_tokens=used + (second.completion_tokens or 0),
            reported_tokens=None,
            callbacks=None,
        )

    def run_once(
        self,
        runtime_input: RuntimeInput,
        sampling: SamplingParams,
        on_piece: OnPiece,
        aborted: threading.Event,
    ) -> tuple[Run, RunResult]:
        """Make one run of the runtime; reload the model first if the sampling requires it."""
        handle, runtime, context = self.handle, self.runtime, self.context_length
        reload_ms = handle.load_for_sampling(sampling)
        # At the end of the context the runtime would shift its window and continue. Only the
        # runtime knows the length of a text prompt.
        free_tokens = context - count_known_tokens(runtime_input)
        limit = min(sampling.max_tokens or free_tokens, free_tokens)
        # At most two iterations: after returning None, `prepare` no longer reuses the cache.
        while (part := self.kv_reuse.prepare(runtime, runtime_input, lora=sampling.lora)) is None:
            reload_ms += handle.load()
        with self._capture() as printed:
            run = runtime.run(
                part.send,
                sampling,
                limit,
                on_piece,
                aborted,
                keep_history=part.keep_history,
                end_tokens=self.end_tokens(sampling),
            )
            printed.is_needed = is_output_needed(run)
        skipped = 0
        if part.skips_prefix:
            skipped = self.kv_reuse.count_skipped(run, runtime_input, runtime.cache_size)
        self.kv_reuse.record_run(runtime_input, run, context)
        check_run(run, context, printed, was_aborted=aborted.is_set())
        result = build_run_result(run, runtime_input, context, runtime.cache_size, skipped)
        return run, replace(result, cached_tokens=part.reused + skipped, reload_ms=reload_ms)

    def run_batch(self, batch: Batch) -> None:
        """Run several requests together."""
        batch.reload_ms = self.handle.load_for_sampling(batch.sampling)
        # One adapter must not use what another one has computed.
        while (
            self.adapters
            and self.kv_reuse.prepare(self.runtime, [], lora=batch.sampling.lora) is None
        ):
            batch.reload_ms += self.handle.load()
        with self._capture() as printed:
            batch.has_printed = printed.has_output
            self.runtime.run_batch(batch)
            printed.is_needed = is_output_needed(batch)
        batch.printed_error = printed.error
        check_run(batch, self.context_length, printed)

    def run_logits(
        self,
        token_loop: TokenLoop,
        tokens: list[int],
        sampling: SamplingParams,
        on_piece: OnPiece,
        aborted: threading.Event,
    ) -> RunResult:
        """Generate from the runtime's logits, of which each token has a run."""
        with self._capture() as printed:
            printed.is_needed = False
            result = token_loop.run(tokens, sampling, on_piece, aborted)
            printed.is_needed = not result.completion_tokens
        if not aborted.is_set():
            # Each token has a run, so an error is that of a run without an answer.
            check_printed(printed)
        return result

    def compute(
        self, tokens: list[int], mode: RKLLMInferMode, copy_output: Callable[[Any], None]
    ) -> None:
        """Compute the hidden states or the logits of tokens, which follow no others."""
        # The key-value cache of a chat must neither affect the result nor be extended by it.
        while (
            not self.runtime.is_loaded
            or self.kv_reuse.prepare(self.runtime, tokens, isolated=True) is None
        ):
            self.handle.load()
        try:
            with self._capture() as printed:
                printed.is_needed = False
                self.runtime.compute(tokens, mode, copy_output)
            check_printed(printed)
        finally:
            # Otherwise vectors in a row become slower and slower (rkllama#139).
            self.kv_reuse.clear(self.runtime)

    @contextmanager
    def _capture(self) -> Iterator[CapturedOutput]:
        """Capture what the library prints during a run, and record its errors.

        A run that fails without a reason gets the library's words.
        """
        failure: BackendFailed | None = None
        with self.handle.output.capture_run() as printed:
            try:
                yield printed
            except BackendFailed as error:
                printed.is_needed = True
                failure = error
        if self.recorder is not None and printed.errors:
            self.recorder.record_printed(printed.reason_lines)
        if failure is not None:
            if printed.error:
                raise BackendFailed(f"{failure.message}, with the words: {printed.error}")
            raise failure

    def close(self) -> None:
        """Free the model."""
        if self.vision is not None:
            self.vision.encoder.close()
        self.handle.close()
        if self.recorder is not None:
            self.recorder.close()
