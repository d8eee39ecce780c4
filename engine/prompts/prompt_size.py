"""Refuses prompts that cannot fit the context before they are tokenized as a whole.

Tokenizing 19 MB of one word takes a minute, and special tokens take quadratic time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.errors import PromptTooLong
from engine.request import Chat, Prompt

# More than the longest token of any known vocabulary, which has 128 spaces or dashes.
MAX_TOKEN_BYTES = 512
_PIECE_CHARS = 32_768
# Shorter texts are not checked here: tokenizing one takes a few hundredths of a second at most.
_MAX_UNCHECKED_CHARS = 2 * _PIECE_CHARS
# How many tokens a cut between two pieces can add.
_MAX_TOKENS_PER_CUT = 64

# Of texts in most languages; English has some four.
_MIN_MEAN_TOKEN_BYTES = 3
# Of the characters of a chat, in any language.
_MEAN_CHAR_BYTES = 2


def check_size(prompt: Prompt, context_length: int, param: str | None = None) -> None:
    """Refuse a prompt that is too long for the context, whatever its tokens are.

    Compares only lengths, so it is fast. A text has at least as many bytes as characters.

    Raises:
        PromptTooLong: with the smallest number of tokens that the prompt can have.
    """
    if not context_length:
        return
    if isinstance(prompt, tuple):
        tokens = len(prompt)
        if tokens > context_length:
            raise prompt_too_long_error(f"{tokens}", tokens, context_length, param)
        return
    chars = len(prompt) if isinstance(prompt, str) else _count_chars(prompt)
    if chars > context_length * MAX_TOKEN_BYTES:
        min_tokens = chars // MAX_TOKEN_BYTES
        raise prompt_too_long_error(
            f"{chars} characters, at least {min_tokens}", min_tokens, context_length, param
        )


def estimate_tokens(prompt: Prompt) -> int:
    """Return about how many tokens a prompt has, rather too many than too few."""
    if isinstance(prompt, tuple):
        return len(prompt)
    if isinstance(prompt, str):
        return len(prompt.encode("utf-8", "replace")) // _MIN_MEAN_TOKEN_BYTES
    return _count_chars(prompt) * _MEAN_CHAR_BYTES // _MIN_MEAN_TOKEN_BYTES


def check_tokens(
    text: str,
    context_length: int,
    tokenize: Callable[[str], Sequence[int]],
    param: str | None = None,
) -> None:
    """Refuse a long text without tokenizing more of it than fits the context.

    It is tokenized in pieces, because the time can grow with the square of the length of a text.

    Raises:
        PromptTooLong: with the number of tokens that were counted until then.
    """
    if len(text) <= _MAX_UNCHECKED_CHARS:
        return
    tokens = 0
    for start in range(0, len(text), _PIECE_CHARS):
        tokens += len(tokenize(text[start : start + _PIECE_CHARS])) - _MAX_TOKENS_PER_CUT
        if tokens > context_length:
            raise prompt_too_long_error(f"more than {tokens}", tokens, context_length, param)


def tokenize_end(text: str, count: int, tokenize: Callable[[str], Sequence[int]]) -> Sequence[int]:
    """Return the last `count` tokens of a text, and of a short text all.

    Only as much of the end is tokenized as has so many tokens. A cut changes the tokens next to it,
    so some more are tokenized and left out.
    """
    chars = _MIN_MEAN_TOKEN_BYTES * (count + _MAX_TOKENS_PER_CUT)
    while True:
        tokens = tokenize(text[-chars:])
        if chars >= len(text) or len(tokens) >= count + _MAX_TOKENS_PER_CUT:
            return tokens[-count:]
        chars *= 2


def prompt_too_long_error(
    size: str, tokens: int, context_length: int, param: str | None
) -> PromptTooLong:
    """Return the error for a text that does not fit; `param` is its field if it is no prompt."""
    message = (
        f"{param or 'prompt'}: {size} tokens do not fit the context of {context_length} tokens"
    )
    if param is None:
        return PromptTooLong(message, prompt_tokens=tokens, context_length=context_length)
    return PromptTooLong(message, prompt_tokens=tokens, context_length=context_length, param=param)


def _count_chars(chat: Chat) -> int:
    chars = sum([len(message.content) for message in chat.messages])
    for message in chat.messages:
        for call in message.tool_calls:
            chars += len(call["function"]["arguments"])
    for tool in chat.tools:
        chars += len(tool["function"].get("description") or "")
    return chars
