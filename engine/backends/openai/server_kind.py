"""The kinds of OpenAI-compatible servers, and the parameters that each of them has.

A server that does not know a parameter refuses it, or ignores it without a word, so a parameter
that OpenAI's API does not have is sent only to servers that are known to read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Fields of SamplingParams and their names in OpenAI's API, which all servers have.
_STANDARD = {
    "temperature": "temperature",
    "top_p": "top_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "seed": "seed",
}
# The names in vLLM, of which other servers know a part.
_VLLM = {
    **_STANDARD,
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "ignore_eos": "ignore_eos",
    "min_tokens": "min_tokens",
    "stop_token_ids": "stop_token_ids",
    "logit_bias": "logit_bias",
    "skip_special_tokens": "skip_special_tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKind:
    """A kind of server, such as vLLM, and the parameters that it has beside OpenAI's own.

    Attributes:
        parameters: the fields of SamplingParams that it reads, with their names in its API.
        grammar: the parameter for a grammar in GBNF; None if it has no grammars.
        template_variables: whether it reads `chat_template_kwargs`.
        token_prompts: whether a prompt may be token ids.
        continuation: parameters that make it continue the last message; None if it cannot.
        stream_options: members of `stream_options` in each request.
        extras: parameters in each request.
        reads_reasoning: whether messages of the assistant may have `reasoning_content`.
        ends_at_stops: whether it finds the same stop strings as the engine. It can then end the
            answer itself, and send its token counts.
    """

    name: str
    parameters: Mapping[str, str] = field(default_factory=lambda: _STANDARD)
    grammar: str | None = None
    template_variables: bool = False
    token_prompts: bool = False
    continuation: Mapping[str, Any] | None = None
    stream_options: Mapping[str, Any] = field(default_factory=dict)
    extras: Mapping[str, Any] = field(default_factory=dict)
    reads_reasoning: bool = False
    ends_at_stops: bool = False


_CONTINUATION = {"continue_final_message": True, "add_generation_prompt": False}

# OpenAI itself, Ollama, LM Studio and all others.
OTHER = ServerKind(name="other")

# By `owned_by` in the answers of `/v1/models`. Sources: entrypoints/openai/engine/protocol.py of
# vLLM, srt/entrypoints/openai/protocol.py of SGLang, tools/server of llama.cpp.
KINDS: Mapping[str, ServerKind] = {
    "vllm": ServerKind(
        name="vLLM",
        parameters=_VLLM | {"allowed_token_ids": "allowed_token_ids"},
        template_variables=True,
        token_prompts=True,
        continuation=_CONTINUATION,
        stream_options={"continuous_usage_stats": True},
        reads_reasoning=True,
    ),
    "sglang": ServerKind(
        name="SGLang",
        parameters=_VLLM,
        template_variables=True,
        token_prompts=True,
        continuation=_CONTINUATION,
        stream_options={"continuous_usage_stats": True},
        reads_reasoning=True,
    ),
    "llamacpp": ServerKind(
        name="llama-server",
        parameters=_STANDARD
        | {
            "top_k": "top_k",
            "min_p": "min_p",
            "repetition_penalty": "repeat_penalty",
            "ignore_eos": "ignore_eos",
            "logit_bias": "logit_bias",
        },
        grammar="grammar",
        template_variables=True,
        token_prompts=True,
        # It needs no parameter: if the last message is the assistant's, it continues it.
        continuation={},
        # Without this, the length of the prompt is in the last chunk alone.
        extras={"timings_per_token": True},
        reads_reasoning=True,
    ),
    "worker-rkllm": ServerKind(
        name="worker-rkllm",
        parameters=_VLLM | {"allowed_token_ids": "allowed_token_ids"},
        grammar="grammar",
        template_variables=True,
        token_prompts=True,
        continuation=_CONTINUATION,
        reads_reasoning=True,
        ends_at_stops=True,
    ),
}


def find_kind(owner: str) -> ServerKind:
    """Return the kind of server that has this as the `owned_by` of its models."""
    return KINDS.get(owner.casefold(), OTHER)
