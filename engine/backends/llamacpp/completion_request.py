"""Build the body of llama.cpp's completion request."""

from __future__ import annotations

from typing import Any

from engine.grammar import prepare_grammar
from engine.reasoning import starts_in_think
from engine.request import RenderedPrompt, SamplingParams
from engine.schema_grammar import build_grammar


def build_completion_request(
    prompt: RenderedPrompt,
    sampling: SamplingParams,
    *,
    context_length: int,
    cache_prompt: bool,
) -> dict[str, Any]:
    """Return the completion request for a prompt. Raises RequestRejected."""
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
        "ignore_eos": sampling.ignore_eos,
        "logit_bias": [[token, bias] for token, bias in sampling.logit_bias.items()],
    }
    if sampling.repetition_penalty != 1 and not (
        sampling.frequency_penalty or sampling.presence_penalty
    ):
        # The whole prompt and answer (R62); llama.cpp's window is 64 tokens. The other penalties
        # are for the answer alone, but llama.cpp counts the prompt for them too, so their window
        # stays.
        body["repeat_last_n"] = context_length
    if sampling.seed is not None:
        # llama.cpp's seeds are 32 bits wide, and the highest one means "random".
        body["seed"] = sampling.seed % 0xFFFF_FFFF
    if sampling.logprobs is not None:
        # 0 would turn log-probabilities off: request one alternative and drop it.
        body["logprobs"] = max(sampling.logprobs, 1)
    thinking = isinstance(prompt, str) and starts_in_think(prompt)
    if sampling.grammar is not None:
        body["grammar"] = prepare_grammar(sampling.grammar, thinking=thinking, as_lark=False)
    if sampling.json_schema is not None:
        # Not sent as a schema: llama.cpp silently ignores a schema that it cannot enforce.
        body["grammar"] = build_grammar(sampling.json_schema, thinking=thinking)
    return body
