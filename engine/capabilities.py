"""What a loaded backend can honour, and what becomes of the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from engine.errors import UnsupportedParameter
from engine.request import Chat, Prompt, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """One backend with one model loaded.

    `context_length` is in tokens, prompt and answer together; `slots` is how many generations run
    side by side; `max_logprobs` is the most alternatives a token can be reported with, 0 for none.
    `fixed_sampling` are the parameters that no request can change, with their values. `turns` says
    whether a chat is rendered as the turns it has and `plain_prompts` whether a prompt goes in as
    it is, without a template around it. `own_template`: whether the model brings a chat template of
    its own, and not one that the engine puts in its place; `template_markers` are the texts that
    mark turns in a prompt rendered by it. `abort_in_prefill` tells the clocks whether an abort can
    be expected to work before the first token. `embeddings`, `infill` and `draft`: whether texts
    have vectors, `embedding_size` numbers long, gaps in a text can be filled, and a draft model
    guesses ahead. `opens_thoughts`: whether the chat template begins every answer in the model's
    thoughts. `prefix_reuse`: whether a prompt that goes on where one before and its answer ended is
    read from there. `prompt_caches`: whether prompts are saved by name for those that begin alike.
    `adapters` are the names of the LoRAs that requests may ask for. `runtime` is what was loaded,
    for people.
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
    logit_bias: bool = False
    grammar: bool = False
    json_schema: bool = False
    token_prompts: bool = False
    chat_template: bool = False
    turns: bool = True
    own_template: bool = False
    template_markers: Sequence[str] = ()
    opens_thoughts: bool = False
    plain_prompts: bool = True
    tokenize: bool = False
    embeddings: bool = False
    embedding_size: int = 0
    infill: bool = False
    draft: bool = False
    prefix_reuse: bool = False
    prompt_caches: bool = False
    abort_in_prefill: bool = False
    adapters: Sequence[str] = ()
    runtime: str = ""

    def __post_init__(self) -> None:
        # JSON turns tuples into lists.
        object.__setattr__(self, "adapters", tuple(self.adapters))
        object.__setattr__(self, "template_markers", tuple(self.template_markers))

    def to_wire(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; `Capabilities(**wire)` is the inverse."""
        return asdict(self)

    def check(self, prompt: Prompt, sampling: SamplingParams) -> tuple[str, ...]:
        """Return one warning for each parameter that will be ignored (R16).

        The only place where a parameter meets what the engine can do. A parameter without which
        the answer would be meaningless (token ids, a grammar) is refused instead.

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
        if sampling.lora is not None and sampling.lora not in self.adapters:
            there = f"there are: {', '.join(self.adapters)}" if self.adapters else "there are none"
            raise UnsupportedParameter(
                f"lora: the {self.backend} engine has no adapter {sampling.lora!r}, {there}",
                param="lora",
            )
        for name in ("grammar", "json_schema"):
            if getattr(sampling, name) is not None and not getattr(self, name):
                raise UnsupportedParameter(
                    f"{name}: the {self.backend} engine cannot constrain its output", param=name
                )
        if sampling.grammar is not None and sampling.json_schema is not None:
            raise UnsupportedParameter(
                "grammar: an answer is held to it or to json_schema, not to both", param="grammar"
            )
        warnings = (*self._of_prompt(prompt), *self._of_fixed(sampling))
        if _OPTIONAL_FIELDS.isdisjoint(sampling.non_defaults):
            return warnings
        return (*warnings, *self._of_optional(sampling), *self._of_logprobs(sampling))

    def _of_prompt(self, prompt: Prompt) -> Iterator[str]:
        if isinstance(prompt, str) and not self.plain_prompts:
            yield (
                f"prompt was rendered with the model's chat template, because the {self.backend} "
                "engine needs a tokenizer beside the model for raw prompts"
            )
        if isinstance(prompt, Chat) and not self.turns:
            alone = len(prompt.messages) == 1 and prompt.messages[0].role == "user"
            if prompt.tools or not alone:
                yield (
                    f"messages were given to the {self.backend} engine as the text of one turn, "
                    "because there is no chat template beside the model"
                )
            if set(prompt.template_kwargs) - {"enable_thinking"}:
                yield (
                    "chat_template_kwargs were ignored, because there is no chat template beside "
                    f"the model of the {self.backend} engine"
                )

    def _of_fixed(self, sampling: SamplingParams) -> Iterator[str]:
        for name, value in self.fixed_sampling.items():
            if (asked := getattr(sampling, name)) != value:
                yield (
                    f"{name} is fixed at {value:g} while the model is loaded by the {self.backend} "
                    f"engine, and {asked:g} was ignored"
                )

    def _of_optional(self, sampling: SamplingParams) -> Iterator[str]:
        return (
            f"{name} is not supported by the {self.backend} engine and was ignored"
            for name, field_name, able in _OPTIONAL
            if field_name in sampling.non_defaults and not able(self)
        )

    def _of_logprobs(self, sampling: SamplingParams) -> Iterator[str]:
        if 0 < self.max_logprobs < (asked := sampling.logprobs or 0):
            yield (
                f"logprobs were limited to {self.max_logprobs} alternatives by the "
                f"{self.backend} engine, and {asked} were requested"
            )


_OPTIONAL: tuple[tuple[str, str, Callable[[Capabilities], bool]], ...] = (
    ("seed", "seed", lambda c: c.seed),
    ("min_p", "min_p", lambda c: c.min_p),
    ("repetition_penalty", "repetition_penalty", lambda c: c.penalties),
    ("frequency_penalty", "frequency_penalty", lambda c: c.penalties),
    ("presence_penalty", "presence_penalty", lambda c: c.penalties),
    ("logprobs", "logprobs", lambda c: c.max_logprobs > 0),
    ("logit_bias", "logit_bias", lambda c: c.logit_bias),
    ("ignore_eos", "ignore_eos", lambda c: c.ignore_eos),
    ("num_assistant_tokens", "draft_tokens", lambda c: c.draft),
    ("prompt_cache", "prompt_cache", lambda c: c.prompt_caches),
    ("assistant_confidence_threshold", "draft_threshold", lambda c: c.draft),
)
# Most requests ask for none of them.
_OPTIONAL_FIELDS = frozenset(name for _, name, _ in _OPTIONAL)
