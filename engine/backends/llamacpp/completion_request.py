"""Build the body of llama.cpp's completion request."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from engine.backends.lora_adapters import LoraAdapter
from engine.prompts.reasoning import Thinking
from engine.request import RenderedPrompt, SamplingParams
from engine.schema.client_grammar import prepare_grammar
from engine.schema.grammar import build_grammar

# One token of an answer: it is not the one that no vocabulary has.
_ANY_TOKEN = "!<[2147483647]>"  # noqa: S105 - no password
# llama.cpp allows a part of a grammar to be repeated some 2,000 times.
_MAX_REPETITIONS = 1000
# Makes every allowed token likelier than every other one, and with a minus an end token unlikelier:
# logits differ by less.
_ALLOWED_BIAS = 1000.0


def build_completion_request(
    prompt: RenderedPrompt,
    sampling: SamplingParams,
    *,
    prompt_tokens: RenderedPrompt,
    preserved_tokens: Sequence[str],
    context_length: int,
    cache_prompt: bool,
    thinking: Thinking = "none",
    end_tokens: Sequence[int] = (),
    adapters: Sequence[LoraAdapter] = (),
) -> dict[str, Any]:
    """Return the completion request for a prompt.

    `prompt_tokens` are its ids; they are needed only for penalties of the answer's tokens.
    `preserved_tokens` are the special tokens that llama.cpp writes as text. `thinking` is what a
    grammar does not hold, and `end_tokens` are the ids that end an answer. `adapters` are all
    loaded LoRA adapters.

    Raises RequestRejected.
    """
    has_grammar = sampling.grammar is not None or sampling.json_schema is not None
    # Where a grammar allows nothing but its end, an answer without end tokens would leave it.
    unlikely = end_tokens if sampling.ignore_eos and has_grammar else ()
    body: dict[str, Any] = {
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        # Only a streaming call can be aborted.
        "stream": True,
        "verbose": True,
        "return_tokens": True,
        # Calls back during prefill too, so that an abort takes effect there.
        "return_progress": True,
        "cache_prompt": cache_prompt,
        "max_tokens": -1 if sampling.max_tokens is None else sampling.max_tokens,
        # All parameters are sent: llama.cpp's defaults (top_k 40, min_p 0.05) are not OpenAI's.
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": max(sampling.top_k, 0),
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "ignore_eos": sampling.ignore_eos and not unlikely,
        "preserved_tokens": list(preserved_tokens),
        # The whole prompt and answer; llama.cpp's own window is 64 tokens.
        "repeat_last_n": context_length,
        "logit_bias": [
            [token, bias] for token, bias in _build_bias(sampling, prompt_tokens, unlikely).items()
        ],
    }
    if adapters:
        # Sent for the base model too: without it, llama.cpp keeps the slot's cache of an adapter.
        # The scale of an adapter that is not listed is 0.
        body["lora"] = [
            {"id": number, "scale": adapter.scale if adapter.name == sampling.lora else 0.0}
            for number, adapter in enumerate(adapters)
        ]
    if sampling.seed is not None:
        # llama.cpp's seeds are 32 bits wide, and the highest one means "random".
        body["seed"] = sampling.seed % 0xFFFF_FFFF
    if sampling.logprobs is not None:
        # 0 would turn log-probabilities off: request one alternative and drop it.
        body["logprobs"] = max(sampling.logprobs, 1)
    if sampling.min_tokens and not sampling.ignore_eos:
        body["grammar"] = _build_length_grammar(min(sampling.min_tokens, context_length))
    if sampling.grammar is not None:
        body["grammar"] = prepare_grammar(sampling.grammar, thinking, end_tokens)
    if sampling.json_schema is not None:
        # Not sent as a schema: llama.cpp silently ignores a schema that it cannot enforce.
        body["grammar"] = build_grammar(sampling.json_schema, thinking, end_tokens)
    return body


def _build_length_grammar(min_tokens: int) -> str:
    """Return the grammar of any answer of at least so many tokens.

    An end token is allowed only where a grammar may end.
    """
    many, few = divmod(min_tokens, _MAX_REPETITIONS)
    return (
        f"root ::= ({_ANY_TOKEN}{{{_MAX_REPETITIONS}}}){{{many}}} {_ANY_TOKEN}{{{few}}} "
        f"{_ANY_TOKEN}*"
    )


def _build_bias(
    sampling: SamplingParams, prompt_tokens: RenderedPrompt, unlikely: Sequence[int]
) -> Mapping[int, float]:
    """Return the bias of tokens, which also makes up for what llama.cpp does differently.

    The `unlikely` tokens are chosen only where a grammar allows no other.

    llama.cpp counts the prompt's tokens for `frequency_penalty` and `presence_penalty` too.
    The bias takes that away again: exactly for the former, unless there is a `repetition_penalty`
    as well. The latter then never affects a token that the prompt has too.
    """
    bias = defaultdict[int, float](float, sampling.logit_bias)
    if (sampling.frequency_penalty or sampling.presence_penalty) and not isinstance(
        prompt_tokens, str
    ):
        for token, count in Counter(prompt_tokens).items():
            bias[token] += sampling.frequency_penalty * count + sampling.presence_penalty
    for token in sampling.allowed_token_ids:
        bias[token] += _ALLOWED_BIAS
    for token in unlikely:
        bias[token] -= _ALLOWED_BIAS
    return bias
