"""Encode log-probabilities in the formats of OpenAI's completions and chats."""

from __future__ import annotations

from collections.abc import Sequence

from common.json_object import JsonObject
from engine import PromptToken, TokenLogprob
from handler.generation.completed_answer import CompletedAnswer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def encode_completion_logprobs(
    logprobs: Sequence[TokenLogprob],
    alternatives: int,
    text_offset: int,
    prompt_tokens: Sequence[PromptToken] = (),
) -> JsonObject:
    """Return the `logprobs` of a completion: four arrays of equal length.

    `text_offset` is the number of characters of the echoed prompt before the answer.
    `prompt_tokens` are the prompt's last tokens, to be listed before the answer's.
    """
    offsets, offset = [], text_offset - sum(len(token.text) for token in prompt_tokens)
    for token in prompt_tokens:
        offsets.append(offset)
        offset += len(token.text)
    entries = [
        *((token.text, token.logprob, token.top) for token in prompt_tokens),
        *((each.token, each.logprob, each.top) for each in logprobs),
    ]
    return {
        "tokens": [text for text, _, _ in entries],
        "token_logprobs": [logprob for _, logprob, _ in entries],
        "top_logprobs": [_top_logprobs(*entry, alternatives) for entry in entries],
        "text_offset": [*offsets, *(text_offset + each.offset for each in logprobs)],
    }


def encode_chat_logprobs(
    logprobs: Sequence[TokenLogprob],
    alternatives: int,
    text_offset: int = 0,
    prompt_tokens: Sequence[PromptToken] = (),
) -> JsonObject:
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


def _top_logprobs(
    token: str, logprob: float | None, top: Sequence[tuple[str, float]], alternatives: int
) -> dict[str, float] | None:
    """Return the likeliest alternatives and, like OpenAI, always the token itself as well.

    None for a token without a log-probability.
    """
    if logprob is None:
        return None
    top_logprobs: dict[str, float] = {}
    for text, value in top[:alternatives]:
        # Partial characters have the same text: keep the likeliest of them.
        top_logprobs.setdefault(text, value)
    top_logprobs.setdefault(token, logprob)
    return top_logprobs


def _bytes(token: str) -> list[int] | None:
    """Return a token's bytes; None if its text contains a replacement for invalid bytes."""
    return None if REPLACEMENT in token else list(token.encode())


def answer_logprobs(answer: CompletedAnswer) -> Sequence[TokenLogprob]:
    """Return the tokens of an answer's text, without those of its reasoning and its calls.

    Those of a stop string are not in the text. A token at the end that is part of a character has
    no text either, but belongs to the answer.
    """
    logprobs: Sequence[TokenLogprob] = answer.logprobs
    if isinstance(answer.finish.stop_reason, str):
        logprobs = logprobs_within(logprobs, len(answer.output))
    if answer.reply.is_all_text:
        return logprobs
    return [each for each in logprobs if answer.reply.has_text_at(each.offset)]


def logprobs_within(logprobs: Sequence[TokenLogprob], chars: int) -> list[TokenLogprob]:
    """Return the tokens that start in the first `chars` characters.

    The others may be those of a stop string.
    """
    return [each for each in logprobs if each.offset < chars]
