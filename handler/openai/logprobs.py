"""Logprobs as OpenAI tells them, in the shapes of both routes (R13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine import TokenLogprob

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def encode_completion_logprobs(
    found: Sequence[TokenLogprob], alternatives: int, shift: int, prompt: Sequence[str] = ()
) -> dict[str, Any]:
    """Return completions' four arrays of equal length.

    `shift` characters of an echoed prompt stand before the answer; `prompt` are its last tokens
    where these are to be told as well, which have no log-probability.
    """
    offsets, at = [], shift - sum(map(len, prompt))
    for piece in prompt:
        offsets.append(at)
        at += len(piece)
    tops = [_tops(each, alternatives) for each in found]
    return {
        "tokens": [*prompt, *(each.token for each in found)],
        "token_logprobs": [*(None for _ in prompt), *(each.logprob for each in found)],
        "top_logprobs": [*(None for _ in prompt), *tops],
        "text_offset": [*offsets, *(shift + each.offset for each in found)],
    }


def encode_chat_logprobs(
    found: Sequence[TokenLogprob], alternatives: int, shift: int = 0, prompt: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a chat's list of tokens, each with its alternatives."""
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
        for each in found
    ]
    return {"content": content, "refusal": None}


def _tops(each: TokenLogprob, alternatives: int) -> dict[str, float]:
    """Return the likeliest by their text; the sampled one is always told, so one more (OpenAI)."""
    tops: dict[str, float] = {}
    for token, logprob in each.top[:alternatives]:
        # Halves of characters look alike: the likelier stands for all.
        tops.setdefault(token, logprob)
    tops.setdefault(each.token, each.logprob)
    return tops


def _bytes(token: str) -> list[int] | None:
    """Return a text's bytes, None where it stands for bytes that are no text."""
    return None if REPLACEMENT in token else list(token.encode())


def logprobs_within(found: Sequence[TokenLogprob], chars: int) -> list[TokenLogprob]:
    """Return the tokens that begin in so much of a text: those of a stop string do not."""
    return [each for each in found if each.offset < chars]
