"""The llama.cpp backend: translates requests for llama.cpp's server and its answers back."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from common.usable_cpus import count_usable_cpus
from common.utf8 import Utf8Decoder
from engine.backends.base import OnPiece, Operations, RunResult, TokenizerInfo
from engine.backends.gguf import read_chat_template, read_header
from engine.backends.gguf_vocabulary import SpecialTokens, read_special_tokens
from engine.backends.llamacpp.adapter_turns import AdapterTurns
from engine.backends.llamacpp.cache_slots import find_history_length
from engine.backends.llamacpp.completion_request import build_completion_request
from engine.backends.llamacpp.completion_run import CompletionRun
from engine.backends.llamacpp.grammar_check import GrammarCheck
from engine.backends.llamacpp.infill import fill_infill_template, read_infill_template
from engine.backends.llamacpp.prompt_scorer import PromptScorer
from engine.backends.llamacpp.reloadable_server import ReloadableServer
from engine.backends.llamacpp.server import DraftConfig, LlamaServer, ServerConfig
from engine.backends.lora_adapters import check_adapters
from engine.backends.options import LlamaCppOptions
from engine.capabilities import Capabilities
from engine.errors import (
    BackendFailed,
    EngineError,
    PromptTooLong,
    RequestRejected,
    UnsupportedParameter,
)
from engine.output import PromptToken
from engine.prompts import reasoning
from engine.prompts.answer_marks import find_answer_marks
from engine.prompts.call_form import find_call_form
from engine.prompts.chat_template import takes_late_system, template_markers
from engine.prompts.control_marks import ControlMarks, RenderedChat
from engine.prompts.image_prompt import ImagePrompt, render_images
from engine.prompts.prompt_size import check_tokens, prompt_too_long_error, tokenize_end
from engine.prompts.reasoning import Thinking
from engine.prompts.tool_prompt import render_with_tools
from engine.reply.reply_format import ToolForm
from engine.request import FIT_CONTEXT, Chat, Prompt, RenderedPrompt, SamplingParams
from engine.schema.client_grammar import has_token_ids, prepare_grammar
from engine.schema.grammar import format_grammar

_MAX_LOGPROBS = 20
# llama.cpp's pooling number of a reranking model, which has no embeddings.
_RANKING_POOLING = 4
# Limit for one text, or a query with a document: llama.cpp computes it in one batch, whose buffers
# grow with the text.
_MAX_EMBEDDING_TOKENS = 2048
# The special tokens that llama.cpp puts around a query and a document, at most.
_PAIR_MARKS = 4
# Room for the text around a query and a document in the template of a reranking model.
_RERANK_TEMPLATE_TOKENS = 256
# The form of special tokens in every known vocabulary.
_BRACKETED_TOKEN = re.compile(r"<\S+>|\[\S+\]")
# Drafted tokens per step if a request sets only the probability that each drafted token needs.
_MAX_DRAFT_TOKENS = 16


class LlamaCppBackend:
    """Runs llama.cpp's server inside this process and calls it without HTTP on the hot path.

    Generations are in-process calls, one thread each; the server batches them continuously.
    Chat templates and tokenisation are available only through the server's HTTP listener, so the
    listener is bound to a socket in a private folder and protected by a random key.

    Embeddings use a second server, which is loaded for the first embeddings request: an embedding
    server computes each text in one batch, and generations in it could not be aborted meanwhile.
    A reranking model has a second server for its scores in the same way.
    """

    def __init__(self, options: LlamaCppOptions) -> None:
        self._path = Path(options.model_path)
        self._name = options.model_name
        self._context_length = options.context_length
        self._slots = 1 if options.deterministic else options.slots
        self._threads = 1 if options.deterministic else options.threads or count_usable_cpus()
        self._deterministic = options.deterministic
        self._draft_path = _path(options.draft_path)
        self._projector_path = _path(options.mmproj_path)
        self._adapters = options.adapters
        self._turns = AdapterTurns()
        self._lock = threading.Lock()
        self._abort_events: dict[int, threading.Event] = {}
        self._config: ServerConfig
        self._server: ReloadableServer
        self._embedding_server: LlamaServer | None = None
        self._reranking_server: LlamaServer | None = None
        self._prompt_scorer: PromptScorer | None = None
        self._grammar_check = GrammarCheck()
        self._infill_template: tuple[str, ...] = ()
        self._vocabulary_size = 0
        self._answer_marks: tuple[str, ...] = ()
        self._special_tokens = SpecialTokens()
        self._control_marks = ControlMarks(())
        # With all special tokens, for answers whose text has them.
        self._all_marks: tuple[str, ...] = ()

    def load(self) -> Capabilities:
        """Load the library and the model. Raises ModelLoadFailed."""
        header = read_header(self._path)
        if self._draft_path is not None:
            read_header(self._draft_path, "DRAFT_MODEL_PATH")
        if self._projector_path is not None:
            read_header(self._projector_path, "MMPROJ_PATH")
        self._check_adapters()
        trained_context = header.context_length
        context = (
            min(self._context_length, trained_context) if self._context_length else trained_context
        )
        self._config = ServerConfig(
            path=self._path,
            name=self._name,
            context=context,
            slots=self._slots,
            threads=self._threads,
            draft_path=self._draft_path,
            projector_path=self._projector_path,
            adapters=self._adapters,
            is_embedding_model=header.pooling > 0,
        )
        self._server = ReloadableServer(self._config)
        with self._server.use_unqueued() as server:
            self._infill_template = read_infill_template(server)
            [model_info] = server.request("/v1/models")["data"]
        self._vocabulary_size = model_info["meta"]["n_vocab"]
        self._answer_marks = find_answer_marks(self._tokenize_without_bos)
        self._special_tokens = read_special_tokens(self._path)
        control_tokens = self._special_tokens.control
        self._control_marks = ControlMarks(control_tokens, self._answer_marks)
        self._all_marks = tuple(dict.fromkeys((*self._answer_marks, *control_tokens)))
        rendered = self._render_probe_chat()
        own_template = rendered is not None and read_chat_template(self._path) is not None
        return build_capabilities(
            self._name,
            context,
            self._slots,
            template_markers=self._find_template_markers(rendered)
            if rendered and own_template
            else None,
            embedding_size=model_info["meta"]["n_embd"]
            if header.pooling != _RANKING_POOLING
            else 0,
            rerank=header.pooling == _RANKING_POOLING,
            infill=bool(self._infill_template),
            draft=self._draft_path is not None,
            images=self._projector_path is not None,
            late_system=rendered is None or takes_late_system(self.render),
            starts_in_reasoning=rendered is not None and reasoning.starts_in_reasoning(rendered),
            prefix_reuse=not self._deterministic,
            adapters=tuple(adapter.name for adapter in self._adapters),
            control_tokens=control_tokens,
            answer_marks=self._answer_marks,
            call_form=find_call_form(self.render, control_tokens),
        )

    def _check_adapters(self) -> None:
        """Check the files of the adapters. Raises ModelLoadFailed."""
        check_adapters(self._adapters, self._name, "LORA_ADAPTERS")
        for adapter in self._adapters:
            read_header(adapter.path, "LORA_ADAPTERS")

    def _render_probe_chat(self) -> str | None:
        """Render a chat of one user turn; return None if the template refuses it."""
        try:
            return self.render(reasoning.PROBE_CHAT)
        except EngineError:
            return None

    def _find_template_markers(self, rendered: str) -> tuple[str, ...]:
        body = {"content": rendered, "with_pieces": True, "parse_special": True}
        tokens = self._request("/tokenize", body)["tokens"]
        # A piece that ends inside a character is a list of bytes; special tokens are always text.
        ids = {token["piece"]: token["id"] for token in tokens if isinstance(token["piece"], str)}
        special = [
            piece
            for piece, token_id in ids.items()
            if _BRACKETED_TOKEN.fullmatch(piece)
            and token_id not in self._tokenize_as_plain_text(piece)
        ]
        return template_markers(rendered, special)

    def tokenize_text(self, text: str) -> list[int]:
        """Return the token ids of a text, with special tokens parsed and none added."""
        self._check_prompt_size(text)
        return self._tokenize_without_bos(text)

    def describe_tokenizer(self, _: str) -> TokenizerInfo:
        """Return what llama.cpp says about the model's special tokens and chat template."""
        with self._server.use_unqueued() as server:
            properties = server.request("/props")
        return {
            "bos_token": properties.get("bos_token") or None,
            "eos_token": properties.get("eos_token") or None,
            "chat_template": properties.get("chat_template") or None,
        }

    def _tokenize_without_bos(self, text: str) -> list[int]:
        return list(self._request("/tokenize", {"content": text, "parse_special": True})["tokens"])

    def _tokenize_as_plain_text(self, text: str) -> list[int]:
        """Tokenize a text as ordinary characters, without parsing special tokens."""
        return list(self._request("/tokenize", {"content": text, "parse_special": False})["tokens"])

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
            "infill": self.infill,
            "find_grammar_violation": self.find_grammar_violation,
            "embed": self.embed,
            "rerank": self.rerank,
            "score": self.score,
        }

    def render(self, chat: Chat) -> str:
        """Render a chat with the template of the GGUF, without its images.

        Raises RequestRejected.
        """
        return self._render_parts(chat).text

    def _render_parts(self, chat: Chat) -> RenderedChat:
        return self._control_marks.render(chat, partial(self._render, image_marker=""))

    def _render(self, chat: Chat, image_marker: str) -> str:
        # If a template does not support tools, llama.cpp adds instructions of its own, and only
        # llama.cpp can parse the resulting calls. Therefore the template is rendered without tools,
        # and the messages describe the tools instead.
        return reasoning.continue_last(
            chat,
            lambda chat: render_with_tools(
                chat, lambda chat: self._apply_template(chat, image_marker)
            ),
        )

    def _apply_template(self, chat: Chat, image_marker: str) -> str:
        messages = [message.to_template(image_marker) for message in chat.messages]
        body: dict[str, Any] = {"messages": messages}
        if chat.template_kwargs:
            body["chat_template_kwargs"] = dict(chat.template_kwargs)
        if chat.tools:
            body["tools"] = [dict(tool) for tool in chat.tools]
        return str(self._request("/apply-template", body)["prompt"])

    def tokenize(self, prompt: str | Chat) -> list[int]:
        """Return token ids as for a prompt, with special tokens parsed and added."""
        rendered = (
            self._render_parts(prompt) if isinstance(prompt, Chat) else RenderedChat((prompt,))
        )
        self._check_prompt_size(rendered.text)
        return self._tokenize_parts(rendered)

    def _tokenize_parts(self, rendered: RenderedChat) -> list[int]:
        first, *others = rendered.pieces
        tokens = self._tokenize(first)
        for piece in others:
            tokens += self._tokenize_without_bos(piece)
        return tokens

    def _tokenize(self, text: str) -> list[int]:
        body = {"content": text, "add_special": True, "parse_special": True}
        return list(self._request("/tokenize", body)["tokens"])

    def _check_prompt_size(self, text: str, param: str | None = None) -> None:
        check_tokens(text, self._config.context, self._tokenize, param)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids. Raises RequestRejected."""
        self._check_token_ids(tokens, "tokens")
        return str(self._request("/detokenize", {"tokens": list(tokens)})["content"])

    def pieces(self, text: str) -> list[str]:
        """Return the text of each token; a split character belongs to its last token."""
        self._check_prompt_size(text)
        body = {"content": text, "parse_special": True, "with_pieces": True}
        decode = Utf8Decoder().decode
        pieces = [token["piece"] for token in self._request("/tokenize", body)["tokens"]]
        return [
            decode(piece.encode() if isinstance(piece, str) else bytes(piece)) for piece in pieces
        ]

    def _check_token_ids(self, tokens: Iterable[int], param: str) -> None:
        """Raise RequestRejected if an id is not a token of the model."""
        size = self._vocabulary_size
        for token in tokens:
            if not 0 <= token < size:
                raise RequestRejected(
                    f"{param}: {token} is no token id of {self._name}, whose ids are 0 to "
                    f"{size - 1}",
                    param=param,
                )

    def _request(self, path: str, body: dict[str, Any]) -> Any:
        with self._server.use_unqueued() as server:
            return server.request(path, body)

    def find_grammar_violation(self, notation_and_text: tuple[str, str]) -> str | None:
        """Return why llama.cpp's library refuses a grammar; it would go on without it."""
        notation, text = notation_and_text
        if notation == "schema":
            grammar = format_grammar(json.loads(text))
        else:
            grammar = prepare_grammar(text)
        return self._grammar_check.find_violation(grammar)

    def infill(self, prefix_and_suffix: tuple[str, str]) -> str:
        """Return the fill-in-the-middle prompt for two texts. Raises UnsupportedParameter."""
        if not self._infill_template:
            raise UnsupportedParameter(f"suffix: {self._name} cannot fill gaps", param="suffix")
        return fill_infill_template(self._infill_template, *prefix_and_suffix)

    def embed(self, text: RenderedPrompt) -> tuple[list[float], int]:
        """Return a text's embedding and number of tokens; always called on the same thread."""
        max_tokens = min(self._config.context, _MAX_EMBEDDING_TOKENS)
        if isinstance(text, tuple):
            self._check_token_ids(text, "input")
        else:
            self._check_prompt_size(text, "input")
        tokens = len(text) if isinstance(text, tuple) else len(self.tokenize(text))
        if tokens > max_tokens:
            raise PromptTooLong(
                f"input: {tokens} tokens are more than the {max_tokens} that a vector is made of",
                prompt_tokens=tokens,
                context_length=max_tokens,
                param="input",
            )
        if self._embedding_server is None:
            # One token more: llama.cpp refuses a text that fills its context completely.
            self._embedding_server = LlamaServer(
                replace(
                    self._config,
                    context=max_tokens + 1,
                    slots=1,
                    draft_path=None,
                    projector_path=None,
                    adapters=(),
                    embeddings=True,
                )
            )
        return self._embedding_server.embed(text)

    def rerank(self, query_and_document: tuple[str, str]) -> tuple[float, int]:
        """Return a document's relevance to a query and the number of tokens of both.

        The score is the model's own, most often a logit. Always called on the thread of `embed`.
        """
        query, document = query_and_document
        max_tokens = min(self._config.context, _MAX_EMBEDDING_TOKENS)
        tokens = _PAIR_MARKS
        for text, param in ((query, "query"), (document, "document")):
            self._check_prompt_size(text, param)
            tokens += len(self._tokenize_without_bos(text))
            if tokens > max_tokens:
                # Checked first: longer than its positions, some models would end the process.
                raise PromptTooLong(
                    f"{param}: {tokens} tokens of a query and a document are more than the "
                    f"{max_tokens} that a score is made of",
                    prompt_tokens=tokens,
                    context_length=max_tokens,
                    param=param,
                )
        if self._reranking_server is None:
            self._reranking_server = LlamaServer(
                replace(
                    self._config,
                    context=max_tokens + _RERANK_TEMPLATE_TOKENS,
                    slots=1,
                    draft_path=None,
                    projector_path=None,
                    adapters=(),
                    reranking=True,
                )
            )
        score, tokens = self._reranking_server.rerank(query, document)
        if not math.isfinite(score):
            raise BackendFailed("llama.cpp failed: the score is no number")
        return score, tokens

    def score(self, prompt_and_alternatives: tuple[RenderedPrompt, int]) -> list[PromptToken]:
        """Return the tokens of a prompt with their log-probabilities; always on the same thread.

        The token that llama.cpp puts before a text is not part of it, but the others follow it.
        """
        prompt, alternatives = prompt_and_alternatives
        if isinstance(prompt, str):
            self._check_prompt_size(prompt)
            tokens = self._tokenize(prompt)
            plain = self._tokenize_without_bos(prompt)
            first = 0 if tokens[: len(plain)] == plain else 1
            tokens = tokens[: first + len(plain)]
        else:
            self._check_token_ids(prompt, "prompt")
            tokens, first = list(prompt), 0
        context = self._config.context
        if len(tokens) > context:
            raise prompt_too_long_error(f"{len(tokens)}", len(tokens), context, None)
        if self._prompt_scorer is None:
            self._prompt_scorer = PromptScorer(self._path, context, self._threads)
        scored = self._prompt_scorer.score(tokens, alternatives)[first:]
        if scored:
            # OpenAI's first token has no log-probability, and clients leave it out.
            scored[0] = PromptToken(scored[0].text)
        if isinstance(prompt, str) and "".join(each.text for each in scored) == " " + prompt:
            # Some vocabularies begin every text with a space.
            scored[0] = PromptToken(scored[0].text[1:])
        return scored

    def run(
        self,
        run_id: int,
        prompt: Prompt,
        sampling: SamplingParams,
        on_piece: OnPiece,
    ) -> RunResult:
        """Generate; blocks without holding the GIL. Raises as `Backend.run`."""
        with self._lock:
            aborted = self._abort_events.setdefault(run_id, threading.Event())
        run = CompletionRun(on_piece, aborted, sampling)
        try:
            image_prompt: ImagePrompt | None = None
            rendered: RenderedChat | None = None
            text: RenderedPrompt
            if not isinstance(prompt, Chat):
                text = prompt
            elif prompt.images:
                image_prompt = render_images(prompt, partial(self._render, prompt))
                text = image_prompt.plain_text
            else:
                rendered = self._render_parts(prompt)
                text = rendered.text
            if isinstance(text, tuple):
                self._check_token_ids(text, "prompt")
            sent = text
            if rendered is not None and rendered.has_marks:
                # As text, llama.cpp would read the marks in messages as control tokens.
                sent = tuple(self._tokenize_parts(rendered))
            truncated = None if image_prompt is not None else self._truncate(sent, sampling)
            if truncated is not None:
                sent = text = truncated
            elif isinstance(text, str):
                self._check_prompt_size(text)
            # An unknown id costs a search through all tokens for each token that is generated.
            self._check_token_ids(sampling.logit_bias, "logit_bias")
            self._check_token_ids(sampling.allowed_token_ids, "allowed_token_ids")
            has_answer_penalty = sampling.frequency_penalty or sampling.presence_penalty
            thinking = reasoning.find_thinking(text, may_think=sampling.may_think)
            body = build_completion_request(
                sent,
                sampling,
                prompt_tokens=tuple(self._tokenize(sent))
                if has_answer_penalty and isinstance(sent, str)
                else sent,
                preserved_tokens=self._answer_marks
                if sampling.skip_special_tokens
                else self._all_marks,
                context_length=self._config.context,
                cache_prompt=not self._deterministic,
                thinking=thinking,
                end_tokens=self._special_tokens.end_ids,
                adapters=self._adapters,
            )
            cache_key = text if image_prompt is None else image_prompt.cache_key
            with self._turns.take(sampling.lora, aborted) as has_turn:
                if not has_turn:
                    return RunResult()
                draft = self._draft_config(sampling)
                with (
                    self._server.use(draft, aborted) as (server, reload_ms),
                    server.slots.acquire(cache_key, sampling.lora) as slot,
                ):
                    if image_prompt is not None:
                        # llama.cpp puts an image at each marker.
                        body["prompt"] = {
                            "prompt_string": image_prompt.join(server.image_marker or ""),
                            "multimodal_data": list(image_prompt.images),
                        }
                    body["id_slot"] = slot.number
                    body["cache_prompt"] = body["cache_prompt"] and slot.is_reusable
                    server.complete(body, run.on_chunk, aborted)
                    result = run.result()
                    history = (
                        find_history_length(prompt, cache_key)
                        if isinstance(prompt, Chat) and isinstance(cache_key, str)
                        else None
                    )
                    slot.record(cache_key, run.text, history)
        finally:
            with self._lock:
                del self._abort_events[run_id]
        grammar_break = None if aborted.is_set() else self._find_break(run, sampling, thinking)
        return replace(result, reload_ms=reload_ms, grammar_break=grammar_break)

    def _find_break(
        self, run: CompletionRun, sampling: SamplingParams, thinking: Thinking
    ) -> int | None:
        """Return after how many characters an answer left its grammar; None if it did not."""
        if sampling.json_schema is not None:
            grammar = format_grammar(sampling.json_schema, thinking)
        elif sampling.grammar is not None:
            grammar = prepare_grammar(sampling.grammar, thinking)
        else:
            return None
        if not sampling.skip_special_tokens or has_token_ids(grammar):
            # The text has tokens that no grammar of text knows, or the grammar has.
            return None
        return self._grammar_check.find_break(grammar, run.text, is_complete=run.has_ended_itself)

    def _truncate(self, text: RenderedPrompt, sampling: SamplingParams) -> tuple[int, ...] | None:
        """Return the last tokens of a prompt that is to be truncated; None if it is not."""
        count, context = sampling.truncate_prompt_tokens, self._config.context
        if count is None or count > context:
            return None
        if count == FIT_CONTEXT:
            count = context - min(sampling.max_tokens or 1, context // 2)
        if isinstance(text, tuple):
            return text[-count:]
        return tuple(tokenize_end(text, count, self._tokenize))

    def _draft_config(self, sampling: SamplingParams) -> DraftConfig | None:
        """Return the request's draft settings; None to use whatever the server is loaded with."""
        tokens, threshold = sampling.draft_tokens, sampling.draft_threshold
        if self._draft_path is None or (tokens is None and threshold is None):
            return None
        return DraftConfig(_MAX_DRAFT_TOKENS if tokens is None else tokens, threshold or 0.0)

    def abort(self, run_id: int) -> None:
        """Make the run's next callback stop the generation."""
        with self._lock:
            self._abort_events.setdefault(run_id, threading.Event()).set()
        self._turns.wake()
        self._server.wake()

    def close(self) -> None:
        """Stop all servers, free their models and remove their sockets."""
        self._server.close()
        for server in (self._embedding_server, self._reranking_server):
            if server is not None:
                server.close()
        if self._prompt_scorer is not None:
            self._prompt_scorer.close()


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def build_capabilities(
    model: str,
    context_length: int,
    slots: int,
    *,
    embedding_size: int = 1,
    rerank: bool = False,
    infill: bool = False,
    draft: bool = False,
    images: bool = False,
    template_markers: Sequence[str] | None = None,
    late_system: bool = True,
    starts_in_reasoning: bool = False,
    prefix_reuse: bool = True,
    adapters: Sequence[str] = (),
    control_tokens: Sequence[str] = (),
    answer_marks: Sequence[str] = (),
    call_form: ToolForm | None = None,
) -> Capabilities:
    """Return the capabilities of llama.cpp with a model.

    llama.cpp reports no log-probabilities of drafted tokens, so `max_logprobs` is 0 with a draft
    model. A model without a chat template has no `template_markers`; llama.cpp then renders
    chats as ChatML.
    """
    return Capabilities(
        backend="llamacpp",
        model=model,
        context_length=context_length,
        slots=slots,
        max_logprobs=0 if draft else _MAX_LOGPROBS,
        prompt_logprobs=True,
        logit_bias=True,
        min_tokens=True,
        prompt_truncation=True,
        special_tokens=True,
        grammar=True,
        json_schema=True,
        token_prompts=True,
        chat_template=True,
        own_template=template_markers is not None,
        template_markers=template_markers or (),
        late_system=late_system,
        starts_in_reasoning=starts_in_reasoning,
        tokenize=True,
        embeddings=embedding_size > 0,
        embedding_size=embedding_size,
        rerank=rerank,
        infill=infill,
        draft=draft,
        images=images,
        prefix_reuse=prefix_reuse,
        abort_in_prefill=True,
        adapters=adapters,
        control_tokens=control_tokens,
        answer_marks=answer_marks,
        call_form=call_form,
        plain_marks=True,
    )
