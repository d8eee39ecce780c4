"""The backend for Rockchip's NPU runtime."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from engine.backends.base import OnPiece, Operations, RunResult, TokenizerInfo
from engine.backends.options import RkllmOptions
from engine.backends.rkllm.abi.structs import RKLLMInferMode
from engine.backends.rkllm.batching.batch import BatchedRequest
from engine.backends.rkllm.batching.scheduler import BatchScheduler
from engine.backends.rkllm.embeddings import HiddenStates
from engine.backends.rkllm.loaded_model import LoadedModel
from engine.backends.rkllm.loading import load_model
from engine.backends.rkllm.logits.last_row import LastRow
from engine.backends.rkllm.runs.inputs import build_embedding_input, build_input, require_tokens
from engine.backends.rkllm.runs.run import RuntimeInput
from engine.backends.rkllm.tokenizer import ChatTokenizer, require_tokenizer
from engine.capabilities import Capabilities
from engine.errors import BackendFailed, RequestRejected, UnsupportedParameter
from engine.request import Chat, Prompt, RenderedPrompt, SamplingParams


class RkllmBackend:
    """Generates with librkllmrt.so: one model, one run at a time, of up to `n_batch` requests.

    If there are tokenizer files, prompts are rendered and tokenised here and sent as tokens.
    Without them the runtime puts each prompt into its own template as one user turn.

    `_handle_lock` is held by the thread that uses the model: one of a run, or that of embeddings.
    With `n_batch` above 1 the scheduler's thread uses it instead. `_lock` guards which runs are
    aborted.
    """

    def __init__(self, options: RkllmOptions) -> None:
        self._options = options
        self._loaded: LoadedModel | None = None
        self._scheduler: BatchScheduler | None = None
        self._handle_lock = threading.Lock()
        self._lock = threading.Lock()
        self._abort_events: dict[int, threading.Event] = {}
        self._current_run_id: int | None = None

    def load(self) -> Capabilities:
        """Find and inspect the library, then load the model. Raises ModelLoadFailed."""
        model, capabilities = load_model(self._options)
        if self._options.n_batch > 1:
            self._scheduler = BatchScheduler(
                self._options.n_batch, model.run_batch, model.runtime.abort
            )
        self._loaded = model
        return capabilities

    @property
    def loaded_model(self) -> LoadedModel:
        """The loaded model. Raises BackendFailed without one."""
        if self._loaded is None:
            raise BackendFailed("no model is loaded")
        return self._loaded

    @property
    def _tokenizer(self) -> ChatTokenizer | None:
        return self.loaded_model.tokenizer

    @property
    def operations(self) -> Operations:
        """The operations that this backend has besides generation, by name."""
        return {
            "render": self.render,
            "tokenize": self.tokenize,
            "tokenize_text": self.tokenize_text,
            "describe_tokenizer": self.describe_tokenizer,
            "detokenize": self.detokenize,
            "pieces": self.pieces,
            "find_grammar_violation": self.find_grammar_violation,
            "embed": self.embed,
            "rerank": self.rerank,
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
        model = self.loaded_model
        tokens = build_embedding_input(
            text, require_tokenizer(model.tokenizer, "input"), model.context_length
        )
        states = HiddenStates(self._options.pooling)
        mode = RKLLMInferMode.RKLLM_INFER_GET_LAST_HIDDEN_LAYER
        if self._scheduler is not None:
            self._scheduler.run_exclusively(lambda: model.compute(tokens, mode, states.copy_result))
        else:
            with self._handle_lock:
                model.compute(tokens, mode, states.copy_result)
        return states.embedding(len(tokens)), len(tokens)

    def rerank(self, query_and_document: tuple[str, str]) -> tuple[float, int]:
        """Return the probability of "yes" for a query and a document, and the prompt's tokens.

        Waits for the active run. Raises UnsupportedParameter, RequestRejected or BackendFailed.
        """
        model = self.loaded_model
        if model.reranker is None:
            raise UnsupportedParameter("query: the model is no reranking model", param="query")
        tokens = model.reranker.build_prompt(*query_and_document)
        last_row = LastRow()
        # There are no batches in logits mode, and so no scheduler.
        with self._handle_lock:
            model.compute(tokens, RKLLMInferMode.RKLLM_INFER_GET_LOGITS, last_row.copy_result)
        return model.reranker.score(last_row, len(tokens)), len(tokens)

    def run(
        self, run_id: int, prompt: Prompt, sampling: SamplingParams, on_piece: OnPiece
    ) -> RunResult:
        """Generate; reload the model first if the sampling parameters require it."""
        model = self.loaded_model
        with self._lock:
            aborted = self._abort_events.setdefault(run_id, threading.Event())
        try:
            if isinstance(prompt, Chat) and prompt.images:
                with self._handle_lock, self._abortable(run_id):
                    # The NPU computes the images and the answer one after the other.
                    multimodal = model.build_multimodal_prompt(prompt, aborted)
                    return model.run_once(multimodal, sampling, on_piece, aborted)[1]
            runtime_input = build_input(prompt, model.tokenizer, model.context_length)
            if self._scheduler is not None:
                return self._scheduler.run(
                    self._build_batched(model, runtime_input, sampling, on_piece, aborted)
                )
            with self._handle_lock, self._abortable(run_id):
                if model.token_loop is not None:
                    tokens = require_tokens(runtime_input)
                    return model.run_logits(model.token_loop, tokens, sampling, on_piece, aborted)
                return model.run(runtime_input, sampling, on_piece, aborted)
        finally:
            with self._lock:
                del self._abort_events[run_id]

    def _build_batched(
        self,
        model: LoadedModel,
        runtime_input: RuntimeInput,
        sampling: SamplingParams,
        on_piece: OnPiece,
        aborted: threading.Event,
    ) -> BatchedRequest:
        return BatchedRequest(
            require_tokens(runtime_input),
            sampling,
            model.context_length,
            on_piece,
            model.end_tokens(sampling),
            aborted,
            model.handle.batch_key(sampling),
        )

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
            if self._current_run_id == run_id and self._loaded is not None:
                self._loaded.runtime.abort()

    def close(self) -> None:
        """Stop the scheduler and free the model."""
        if self._scheduler is not None:
            self._scheduler.close()
        if self._loaded is not None:
            self._loaded.close()


def _no_template_error() -> UnsupportedParameter:
    return UnsupportedParameter(
        "messages: there is no chat template beside the model (RKLLM_TOKENIZER)", param="messages"
    )
