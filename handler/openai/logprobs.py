"""Encode log-probabilities in the formats of OpenAI's completions and chats (R13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine import TokenLogprob

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def encode_completion_logprobs(
    logprobs: Sequence[TokenLogprob],
    alternatives: int,
    text_offset: int,
    prompt_tokens: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the `logprobs` of a completion: four arrays of equal length.

    `text_offset` is the number of characters of the echoed prompt before the answer.
    `prompt_tokens` are the prompt's last tokens, to be listed before the answer's; they have no
    log-probability.
    """
    offsets, offset = [], text_offset - sum(map(len, prompt_tokens))
    for token in prompt_tokens:
        offsets.append(offset)
        offset += len(token)
    top_logprobs = [_top_logprobs(each, alternatives) for each in logprobs]
    return {
        "tokens": [*prompt_tokens, *(each.token for each in logprobs)],
        "token_logprobs": [*(None for _ in prompt_tokens), *(each.logprob for each in logprobs)],
        "top_logprobs": [*(None for _ in prompt_tokens), *top_logprobs],
        "text_offset": [*offsets, *(text_offset + each.offset for each in logprobs)],
    }


def encode_chat_logprobs(
    logprobs: Sequence[TokenLogprob],
    alternatives: int,
    text_offset: int = 0,
    prompt_tokens: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the `logprobs` of a chat: a list of tokens, each with its alternatives."""
    content = [
        {
            "token": each.token,
            "logprob": each.logprob,
            "bytes": list(each.raw),
            "top_logprobs": [
                {"token": token, "logprob": logprob, "bytes": _bytes(token)}
                for token, logprob in each.top[:alternatives]
            ],
        }
        for each in logprobs
    ]
    return {"content": content, "refusal": None}


def _top_logprobs(each: TokenLogprob, alternatives: int) -> dict[str, float]:
    """Return the likeliest alternatives and, like OpenAI, always the sampled token as well."""
    top_logprobs: dict[str, float] = {}
    for token, logprob in each.top[:alternatives]:
        # Partial characters have the same text: keep the likeliest of them.
        top_logprobs.setdefault(token, logprob)
    top_logprobs.setdefault(each.token, each.logprob)
    return top_logprobs


def _bytes(token: str) -> list[int] | None:
    """Return a token's bytes; None if its text contains a replacement for invalid bytes."""
    return None if REPLACEMENT in token else list(token.encode())


def logprobs_within(logprobs: Sequence[TokenLogprob], chars: int) -> list[TokenLogprob]:
    """Return the tokens that start in the first `chars` characters.

    This excludes the tokens of a stop string, which is not part of the text.
    """
    return [each for each in logprobs if each.offset < chars]
