"""The capabilities of a loaded backend, and the check of parameters against them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from engine.errors import UnsupportedParameter
from engine.prompts.reasoning import THINK_OPEN
from engine.reply.reply_format import ToolForm
from engine.request import Chat, Prompt, SamplingParams

# Variables of a chat template that switch reasoning on and off. The runtime's own template, and
# servers of the openai engine, know only whether it is on, and the effort.
_REASONING_VARIABLES = frozenset({"enable_thinking", "thinking", "reasoning_effort"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The capabilities of one backend with its loaded model.

    `context_length`: tokens of prompt and answer together.
    `slots`: number of concurrent generations.
    `fixed_sampling`: the parameters that no request can change, with their values.
    `max_logprobs`: the most alternatives per token; 0 if log-probabilities are unsupported.
    `prompt_logprobs`: the tokens of a prompt have log-probabilities.
    `min_tokens`: answers can be kept from ending before a number of tokens.
    `prompt_truncation`: only the last tokens of a prompt can be used.
    `special_tokens`: special tokens can be in the text of an answer.
    `turns`: a chat is rendered turn by turn, and not as the text of one turn.
    `own_template`: the model has its own chat template, and not one that the engine supplies.
    `template_markers`: the texts that mark turns in a prompt rendered by that template.
    `late_system`: the chat template takes system messages after the first message.
    `starts_in_reasoning`: the chat template begins every answer inside the model's reasoning.
    `plain_prompts`: a text prompt is not wrapped in a template.
    `embedding_size`: the dimensions of an embedding.
    `rerank`: the model is a reranking model, which scores a query with a document.
    `rerank_gap`: why a reranking model scores no texts with these settings, without a full stop.
    `infill`: fill-in-the-middle is supported.
    `images`: messages may have images, because a projector or a vision encoder is loaded too.
    `max_images`: the most images of a chat that the model tells apart; None without a limit.
    `draft`: a draft model is loaded for speculative decoding.
    `prefix_reuse`: a prompt that continues the previous prompt and answer reuses their cache.
    `template_variables`: the variables of a chat reach its template.
    `tool_choice`: the engine itself makes the model call a function where a request requires it.
    `concurrent_calls`: how many embeddings are computed at the same time.
    `isolated_crashes`: a crash of one generation leaves the others alone.
    `token_pieces`: each piece of an answer is one token.
    `stop_token_ids`: ids of tokens can end an answer.
    `abort_in_prefill`: an abort works before the first token; the timeouts depend on it.
    `control_tokens`: the special tokens that a message must not contain as such.
    `answer_marks`: those of them that mark the reasoning and the calls of an answer.
    `plain_marks`: control tokens in the texts of messages are read as plain text.
    `call_form`: the form of calls that the chat template asks for, if a grammar can hold it.
    `adapters`: the names of the LoRAs that requests may use.
    `runtime`: a description of the loaded library, for reports.
    `library_facts`: what the library printed about itself, the driver and the model at the load.
    """

    backend: str
    model: str
    context_length: int
    slots: int = 1
    fixed_sampling: Mapping[str, float] = field(default_factory=dict)
    penalties: bool = True
    min_p: bool = True
    seed: bool = True
    ignore_eos: bool = True
    max_logprobs: int = 0
    prompt_logprobs: bool = False
    logit_bias: bool = False
    min_tokens: bool = False
    prompt_truncation: bool = False
    special_tokens: bool = False
    grammar: bool = False
    json_schema: bool = False
    token_prompts: bool = False
    chat_template: bool = False
    turns: bool = True
    own_template: bool = False
    template_markers: Sequence[str] = ()
    late_system: bool = True
    starts_in_reasoning: bool = False
    plain_prompts: bool = True
    tokenize: bool = False
    embeddings: bool = False
    embedding_size: int = 0
    rerank: bool = False
    rerank_gap: str = ""
    infill: bool = False
    images: bool = False
    max_images: int | None = None
    draft: bool = False
    prefix_reuse: bool = False
    template_variables: bool = True
    tool_choice: bool = False
    concurrent_calls: int = 1
    isolated_crashes: bool = False
    token_pieces: bool = True
    stop_token_ids: bool = True
    abort_in_prefill: bool = False
    control_tokens: Sequence[str] = ()
    answer_marks: Sequence[str] = ()
    plain_marks: bool = False
    call_form: ToolForm | None = None
    adapters: Sequence[str] = ()
    runtime: str = ""
    library_facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # After a transfer as JSON these are lists.
        object.__setattr__(self, "adapters", tuple(self.adapters))
        object.__setattr__(self, "template_markers", tuple(self.template_markers))
        object.__setattr__(self, "control_tokens", tuple(self.control_tokens))
        object.__setattr__(self, "answer_marks", tuple(self.answer_marks))

    @property
    def is_reranking_model(self) -> bool:
        """Whether the model was trained for reranking, which gives it no useful embeddings."""
        return self.rerank or bool(self.rerank_gap)

    def to_wire(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; `Capabilities(**wire)` is the inverse."""
        return asdict(self)

    def check(self, prompt: Prompt, sampling: SamplingParams) -> tuple[str, ...]:
        """Return one warning for each parameter that will be ignored.

        This is the only place that compares parameters with the engine's capabilities. A parameter
        without which the answer would be meaningless (token ids) is refused instead.

        Raises:
            UnsupportedParameter: the request cannot be served without the missing capability.
        """
        if isinstance(prompt, tuple) and not self.token_prompts:
            raise UnsupportedParameter(
                f"prompt: the {self.backend} engine takes text, not token ids", param="prompt"
            )
        if isinstance(prompt, Chat) and not self.chat_template:
            raise UnsupportedParameter(
                f"messages: {self.model} has no chat template, send a prompt instead",
                param="messages",
            )
        if isinstance(prompt, Chat) and prompt.continues_last and not self.turns:
            raise UnsupportedParameter(
                "continue_final_message: there is no chat template beside the model of the "
                f"{self.backend} engine",
                param="continue_final_message",
            )
        if sampling.lora is not None and sampling.lora not in self.adapters:
            known = f"there are: {', '.join(self.adapters)}" if self.adapters else "there are none"
            raise UnsupportedParameter(
                f"lora: the {self.backend} engine has no adapter {sampling.lora!r}, {known}",
                param="lora",
            )
        if sampling.grammar is not None and sampling.json_schema is not None:
            raise UnsupportedParameter(
                "grammar: an answer is held to it or to json_schema, not to both", param="grammar"
            )
        warnings = (*self._warn_about_prompt(prompt), *self._warn_about_fixed(sampling))
        if self.truncates(sampling) and isinstance(prompt, Chat) and prompt.images:
            warnings += ("truncate_prompt_tokens was ignored, because there are images",)
        if _OPTIONAL_FIELDS.isdisjoint(sampling.non_defaults):
            return warnings
        return (
            *warnings,
            *self._warn_about_unsupported(sampling),
            *self._warn_about_logprobs(sampling),
            *self._warn_about_min_tokens(sampling),
        )

    def truncates(self, sampling: SamplingParams) -> bool:
        """Return whether the engine keeps only the end of a prompt, so that it may be longer."""
        count = sampling.truncate_prompt_tokens
        return self.prompt_truncation and count is not None and count <= self.context_length

    def leave_out_ignored(self, sampling: SamplingParams) -> SamplingParams:
        """Return the parameters without a `min_tokens` that `check` has warned about.

        Stop strings would take it into account, although the engine does not.
        """
        has_effect = self.min_tokens and not _is_constrained(sampling)
        if not sampling.min_tokens or has_effect:
            return sampling
        return replace(sampling, min_tokens=0)

    def _warn_about_prompt(self, prompt: Prompt) -> Iterator[str]:
        if isinstance(prompt, str) and not self.plain_prompts:
            yield (
                f"prompt was rendered with the model's chat template, because the {self.backend} "
                "engine needs a tokenizer beside the model for raw prompts"
            )
        if isinstance(prompt, Chat) and not self.turns:
            is_one_turn = len(prompt.messages) == 1 and prompt.messages[0].role == "user"
            if prompt.tools or not is_one_turn:
                yield (
                    f"messages were given to the {self.backend} engine as the text of one turn, "
                    "because there is no chat template beside the model"
                )
            if set(prompt.template_kwargs) - _REASONING_VARIABLES:
                yield (
                    "chat_template_kwargs were ignored, because there is no chat template beside "
                    f"the model of the {self.backend} engine"
                )

        if isinstance(prompt, Chat) and not self.template_variables:
            names = sorted(prompt.template_kwargs.keys() - _REASONING_VARIABLES)
            if names:
                yield (
                    f"chat_template_kwargs were ignored by the {self.backend} engine, whose server "
                    f"is not known to read them: {', '.join(names)}"
                )

    def _warn_about_fixed(self, sampling: SamplingParams) -> Iterator[str]:
        for name, value in self.fixed_sampling.items():
            if (requested := getattr(sampling, name)) != value and name not in sampling.unset:
                yield (
                    f"{name} is fixed at {value:g} while the model is loaded by the {self.backend} "
                    f"engine, and {requested:g} was ignored"
                )

    def _warn_about_unsupported(self, sampling: SamplingParams) -> Iterator[str]:
        return (
            f"{name} is not supported by the {self.backend} engine and was ignored"
            for name, field_name, is_supported in _OPTIONAL
            if field_name in sampling.non_defaults and not is_supported(self)
        )

    def _warn_about_logprobs(self, sampling: SamplingParams) -> Iterator[str]:
        if 0 < self.max_logprobs < (requested := sampling.logprobs or 0):
            yield (
                f"logprobs were limited to {self.max_logprobs} alternatives by the "
                f"{self.backend} engine, and {requested} were requested"
            )

    def _warn_about_min_tokens(self, sampling: SamplingParams) -> Iterator[str]:
        if sampling.min_tokens and self.min_tokens and _is_constrained(sampling):
            yield "min_tokens was ignored, because the grammar says where the answer may end"


_OPTIONAL: tuple[tuple[str, str, Callable[[Capabilities], bool]], ...] = (
    ("seed", "seed", lambda c: c.seed),
    ("min_p", "min_p", lambda c: c.min_p),
    ("repetition_penalty", "repetition_penalty", lambda c: c.penalties),
    ("frequency_penalty", "frequency_penalty", lambda c: c.penalties),
    ("presence_penalty", "presence_penalty", lambda c: c.penalties),
    ("logprobs", "logprobs", lambda c: c.max_logprobs > 0),
    ("logit_bias", "logit_bias", lambda c: c.logit_bias),
    ("allowed_token_ids", "allowed_token_ids", lambda c: c.logit_bias),
    ("grammar", "grammar", lambda c: c.grammar),
    ("json_schema", "json_schema", lambda c: c.json_schema),
    ("ignore_eos", "ignore_eos", lambda c: c.ignore_eos),
    ("min_tokens", "min_tokens", lambda c: c.min_tokens),
    ("truncate_prompt_tokens", "truncate_prompt_tokens", lambda c: c.prompt_truncation),
    ("skip_special_tokens", "skip_special_tokens", lambda c: c.special_tokens),
    ("stop_token_ids", "stop_token_ids", lambda c: c.stop_token_ids),
    ("num_assistant_tokens", "draft_tokens", lambda c: c.draft),
    ("assistant_confidence_threshold", "draft_threshold", lambda c: c.draft),
)
# Most requests set none of them.
_OPTIONAL_FIELDS = frozenset(name for _, name, _ in _OPTIONAL)


def thinks_before_grammar(
    prompt: Prompt, sampling: SamplingParams, capabilities: Capabilities
) -> bool:
    """Return whether an answer that is held to a grammar may begin with reasoning.

    The client has asked for reasoning, and the model has the one mark that grammars know.
    """
    return (
        _is_constrained(sampling)
        and isinstance(prompt, Chat)
        and not prompt.continues_last
        and prompt.template_kwargs.get("enable_thinking") is True
        and THINK_OPEN in capabilities.answer_marks
    )


def _is_constrained(sampling: SamplingParams) -> bool:
    return sampling.grammar is not None or sampling.json_schema is not None
