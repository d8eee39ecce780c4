"""Prompts that cannot fit the context, found out before anything is made of them.

Reading 19 MB of one word as tokens takes a minute, and special tokens take quadratic time: a
prompt that is refused anyway must not be read as a whole first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.errors import PromptTooLong
from engine.request import Chat, Prompt

# More than the longest token of any known vocabulary has; that is 128 spaces, or dashes.
MAX_TOKEN_BYTES = 512
# Shorter texts are read at once: a few hundredths of a second at most.
_PIECE_CHARS = 32_768
_READ_AT_ONCE_CHARS = 2 * _PIECE_CHARS
# How many tokens a text can lose by where it is cut.
_MERGED_AT_A_CUT = 64


def check_size(prompt: Prompt, context_length: int, param: str | None = None) -> None:
    """Refuse a prompt that is too long for the context whatever its tokens are.

    Costs nothing: only lengths are compared. A text has at least as many bytes as characters.

    Raises:
        PromptTooLong: with the least number of tokens that the prompt can have.
    """
    if not context_length:
        return
    if isinstance(prompt, tuple):
        tokens = len(prompt)
        if tokens > context_length:
            raise prompt_too_long_error(f"{tokens}", tokens, context_length, param)
        return
    chars = len(prompt) if isinstance(prompt, str) else _chars_of(prompt)
    if chars > context_length * MAX_TOKEN_BYTES:
        least = chars // MAX_TOKEN_BYTES
        raise prompt_too_long_error(
            f"{chars} characters, at least {least}", least, context_length, param
        )


def check_tokens(
    text: str,
    context_length: int,
    tokenize: Callable[[str], Sequence[int]],
    param: str | None = None,
) -> None:
    """Refuse a long text by reading no more of it than fits the context.

    It is read in pieces, since the time for one text can grow with the square of its length.

    Raises:
        PromptTooLong: with the number of tokens when it stopped.
    """
    if len(text) <= _READ_AT_ONCE_CHARS:
        return
    tokens = 0
    for start in range(0, len(text), _PIECE_CHARS):
        tokens += len(tokenize(text[start : start + _PIECE_CHARS])) - _MERGED_AT_A_CUT
        if tokens > context_length:
            raise prompt_too_long_error(f"more than {tokens}", tokens, context_length, param)


def prompt_too_long_error(
    size: str, tokens: int, context_length: int, param: str | None
) -> PromptTooLong:
    """Return the error of a prompt that does not fit; `param` names what is no prompt."""
    message = (
        f"{param or 'prompt'}: {size} tokens do not fit the context of {context_length} tokens"
    )
    if param is None:
        return PromptTooLong(message, prompt_tokens=tokens, context_length=context_length)
    return PromptTooLong(message, prompt_tokens=tokens, context_length=context_length, param=param)


def _chars_of(chat: Chat) -> int:
    chars = sum([len(message.content) for message in chat.messages])
    for message in chat.messages:
        for call in message.tool_calls:
            chars += len(call["function"]["arguments"])
    for tool in chat.tools:
        chars += len(tool["function"].get("description") or "")
    return chars
