"""The backend of llama.cpp: requests to its server's words and back."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine import reasoning
from engine.backends.base import OnPiece, RunResult
from engine.backends.gguf import has_chat_template, read_header
from engine.backends.llamacpp.body import build_completion_request
from engine.backends.llamacpp.infill import fill_infill_template, read_infill_template
from engine.backends.llamacpp.loaded import ReloadableServer
from engine.backends.llamacpp.run import CompletionRun
from engine.backends.llamacpp.server import DraftConfig, LlamaServer, ServerConfig
from engine.capabilities import Capabilities
from engine.chat_template import template_markers
from engine.errors import EngineError, PromptTooLong, RequestRejected, UnsupportedParameter
from engine.prompt_size import check_tokens
from engine.request import Chat, Prompt, RenderedPrompt, SamplingParams
from engine.tool_prompt import render_with_tools
from engine.utf8 import Utf8Decoder

_MAX_LOGPROBS = 20
# llama.cpp's number for a model that ranks texts instead of making vectors of them.
_RANKING_POOLING = 4
# Of one text: all of it is computed in one batch, whose buffers grow with it.
_MAX_EMBEDDING_TOKENS = 2048
# The form of special tokens in every vocabulary that is known.
_BRACKETED_TOKEN = re.compile(r"<\S+>|\[\S+\]")
# How far to draft at most where a request only says how sure each guess must be.
_MAX_DRAFT_TOKENS = 16


class LlamaCppBackend:
    """llama.cpp's own server inside this process, asked without HTTP for what is hot.

    Generations go through in-process calls, one thread each; the server batches them continuously.
    Rendering a chat template and tokenising exist only behind its HTTP listener, which is put on a
    socket in a private folder with a key that nobody else has. `context_length` is per slot, in
    tokens, 0 for the model's own; `deterministic` trades speed for the same text every time: one
    slot, one thread, no reuse of an earlier prompt's cache. A model at `draft_path` guesses ahead.
    Vectors come from a second server, loaded when the first one is asked for: what makes them
    takes whole texts in one batch, which would make generations deaf to an abort.
    """

    def __init__(
        self,
        model_path: str,
        model_name: str,
        context_length: int = 4096,
        slots: int = 4,
        threads: int = 0,
        *,
        deterministic: bool = False,
        draft_path: str | None = None,
    ) -> None:
        self._path = Path(model_path)
        self._name = model_name
        self._context_length = context_length
        self._slots = 1 if deterministic else slots
        self._threads = 1 if deterministic else threads or len(os.sched_getaffinity(0))
        self._deterministic = deterministic
        self._draft_path = Path(draft_path) if draft_path is not None else None
        self._lock = threading.Lock()
        self._aborted: dict[int, threading.Event] = {}
        self._plan: ServerConfig
        self._loaded: ReloadableServer
        self._vectors: LlamaServer | None = None
        self._frame: tuple[str, ...] = ()
        self._vocabulary_size = 0

    def load(self) -> Capabilities:
        """Load library and model. Raises ModelLoadFailed."""
        header = read_header(self._path)
        if self._draft_path is not None:
            read_header(self._draft_path, "DRAFT_MODEL_PATH")
        trained = header.context_length
        context = min(self._context_length, trained) if self._context_length else trained
        self._plan = ServerConfig(
            path=self._path,
            name=self._name,
            context=context,
            slots=self._slots,
            threads=self._threads,
            draft_path=self._draft_path,
            pooled=header.pooling > 0,
        )
        self._loaded = ReloadableServer(self._plan)
        with self._loaded.side() as server:
            self._frame = read_infill_template(server)
            [told] = server.ask("/v1/models")["data"]
        self._vocabulary_size = told["meta"]["n_vocab"]
        rendered = self._rendered_question()
        own_template = rendered is not None and has_chat_template(self._path)
        return build_capabilities(
            self._name,
            context,
            self._slots,
            template_markers=self._markers(rendered) if rendered and own_template else None,
            embedding_size=told["meta"]["n_embd"] if header.pooling != _RANKING_POOLING else 0,
            infill=bool(self._frame),
            draft=self._draft_path is not None,
            opens_thoughts=rendered is not None and reasoning.starts_in_reasoning(rendered),
            prefix_reuse=not self._deterministic,
        )

    def _rendered_question(self) -> str | None:
        """Return a chat of one user turn, rendered; None for a template that refuses it."""
        try:
            return self.render(reasoning.PROBE_CHAT)
        except EngineError:
            return None

    def _markers(self, rendered: str) -> tuple[str, ...]:
        body = {"content": rendered, "with_pieces": True, "parse_special": True}
        tokens = self._ask("/tokenize", body)["tokens"]
        # A piece is a list of bytes where it is not whole characters; no special token is.
        pieces = {each["piece"]: each["id"] for each in tokens if isinstance(each["piece"], str)}
        special = [
            piece
            for piece, number in pieces.items()
            if _BRACKETED_TOKEN.fullmatch(piece) and number not in self._plain_tokens(piece)
        ]
        return template_markers(rendered, special)

    def _plain_tokens(self, text: str) -> list[int]:
        """Return token ids of a text in which special tokens are read as ordinary characters."""
        return list(self._ask("/tokenize", {"content": text, "parse_special": False})["tokens"])

    def render(self, chat: Chat) -> str:
        """Return the prompt that the GGUF's own chat template makes. Raises RequestRejected."""
        # llama.cpp has words of its own for templates without a place for functions, which ask for
        # answers that only it can read: the template is asked without them instead.
        return render_with_tools(chat, self._rendered)

    def _rendered(self, chat: Chat) -> str:
        body: dict[str, Any] = {"messages": [each.to_template() for each in chat.messages]}
        if chat.template_kwargs:
            body["chat_template_kwargs"] = dict(chat.template_kwargs)
        if chat.tools:
            body["tools"] = [dict(tool) for tool in chat.tools]
        return str(self._ask("/apply-template", body)["prompt"])

    def tokenize(self, text: str) -> list[int]:
        """Return the model's token ids, special tokens parsed and added as for a prompt."""
        self._check_tokens(text)
        return self._tokens(text)

    def _tokens(self, text: str) -> list[int]:
        body = {"content": text, "add_special": True, "parse_special": True}
        return list(self._ask("/tokenize", body)["tokens"])

    def _check_tokens(self, text: str, param: str | None = None) -> None:
        check_tokens(text, self._plan.context, self._tokens, param)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids. Raises RequestRejected."""
        self._check_ids(tokens, "tokens")
        return str(self._ask("/detokenize", {"tokens": list(tokens)})["content"])

    def pieces(self, text: str) -> list[str]:
        """Return the text of each token; one that ends inside a character gets none of it."""
        self._check_tokens(text)
        body = {"content": text, "parse_special": True, "with_pieces": True}
        decode = Utf8Decoder().decode
        found = [each["piece"] for each in self._ask("/tokenize", body)["tokens"]]
        return [
            decode(piece.encode() if isinstance(piece, str) else bytes(piece)) for piece in found
        ]

    def _check_ids(self, tokens: Iterable[int], param: str) -> None:
        """Refuse an id that is no token of the model. Raises RequestRejected."""
        size = self._vocabulary_size
        for token in tokens:
            if not 0 <= token < size:
                raise RequestRejected(
                    f"{param}: {token} is no token id of {self._name}, whose ids are 0 to "
                    f"{size - 1}",
                    param=param,
                )

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        with self._loaded.side() as server:
            return server.ask(path, body)

    def infill(self, around: tuple[str, str]) -> str:
        """Return the prompt for what is missing between two texts. Raises UnsupportedParameter."""
        if not self._frame:
            raise UnsupportedParameter(f"suffix: {self._name} cannot fill gaps", param="suffix")
        return fill_infill_template(self._frame, *around)

    def embed(self, text: RenderedPrompt) -> tuple[list[float], int]:
        """Return a text's vector and how many tokens it has; always on one and the same thread."""
        most = min(self._plan.context, _MAX_EMBEDDING_TOKENS)
        if isinstance(text, tuple):
            self._check_ids(text, "input")
        else:
            self._check_tokens(text, "input")
        tokens = len(text) if isinstance(text, tuple) else len(self.tokenize(text))
        if tokens > most:
            raise PromptTooLong(
                f"input: {tokens} tokens are more than the {most} that a vector is made of",
                prompt_tokens=tokens,
                context_length=most,
                param="input",
            )
        if self._vectors is None:
            # One more, for llama.cpp takes no text that fills its context to the last token.
            self._vectors = LlamaServer(
                replace(self._plan, context=most + 1, slots=1, draft_path=None, vectors=True)
            )
        return self._vectors.embed(text)

    def run(
        self,
        run_id: int,
        prompt: Prompt,
        sampling: SamplingParams,
        on_piece: OnPiece,
    ) -> RunResult:
        """Generate; blocks without holding the interpreter's lock. Raises as `Backend.run` says."""
        with self._lock:
            aborted = self._aborted.setdefault(run_id, threading.Event())
        run = CompletionRun(on_piece, aborted, sampling)
        try:
            text = self.render(prompt) if isinstance(prompt, Chat) else prompt
            if isinstance(text, tuple):
                self._check_ids(text, "prompt")
            else:
                self._check_tokens(text)
            # llama.cpp looks for an unknown one among all tokens, for each token of an answer.
            self._check_ids(sampling.logit_bias, "logit_bias")
            body = build_completion_request(text, sampling, cache_prompt=not self._deterministic)
            with (
                self._loaded.use(self._draft(sampling), aborted) as (server, reload_ms),
                server.slots.take(text) as slot,
            ):
                server.complete(body | {"id_slot": slot.number}, run.on_chunk)
                end = run.end()
                slot.holds(text, run.text)
        finally:
            with self._lock:
                del self._aborted[run_id]
        return replace(end, reload_ms=reload_ms)

    def _draft(self, sampling: SamplingParams) -> DraftConfig | None:
        """Return how far to draft; None to leave it as it is."""
        tokens, threshold = sampling.draft_tokens, sampling.draft_threshold
        if self._draft_path is None or (tokens is None and threshold is None):
            return None
        return DraftConfig(_MAX_DRAFT_TOKENS if tokens is None else tokens, threshold or 0.0)

    def abort(self, run_id: int) -> None:
        """Make the run's next callback answer that no more is wanted."""
        with self._lock:
            self._aborted.setdefault(run_id, threading.Event()).set()
        self._loaded.wake()

    def close(self) -> None:
        """Stop the servers, free the models and remove their sockets."""
        self._loaded.close()
        if self._vectors is not None:
            self._vectors.close()


def build_capabilities(
    model: str,
    context_length: int,
    slots: int,
    *,
    embedding_size: int = 1,
    infill: bool = False,
    draft: bool = False,
    template_markers: Sequence[str] | None = None,
    opens_thoughts: bool = False,
    prefix_reuse: bool = True,
) -> Capabilities:
    """Return what llama.cpp can do with a model.

    It reports no log-probabilities of drafted tokens, so there are none with a draft model.
    `template_markers` is None for a model without a chat template of its own: llama.cpp then
    renders chats as ChatML.
    """
    return Capabilities(
        backend="llamacpp",
        model=model,
        context_length=context_length,
        slots=slots,
        max_logprobs=0 if draft else _MAX_LOGPROBS,
        logit_bias=True,
        grammar=True,
        json_schema=True,
        token_prompts=True,
        chat_template=True,
        own_template=template_markers is not None,
        template_markers=template_markers or (),
        opens_thoughts=opens_thoughts,
        tokenize=True,
        embeddings=embedding_size > 0,
        embedding_size=embedding_size,
        infill=infill,
        draft=draft,
        prefix_reuse=prefix_reuse,
        abort_in_prefill=True,
    )
