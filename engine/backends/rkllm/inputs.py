"""What the runtime is fed for a prompt: tokens where a tokenizer is at hand, else a user's turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.backends.rkllm.prompts import ChatTokenizer
from engine.backends.rkllm.runtime import Turn
from engine.errors import PromptTooLong, RequestRejected, UnsupportedParameter
from engine.request import Chat, Prompt, RenderedPrompt
from engine.tool_prompt import tool_calls_as_text, tools_as_text

# More than any vocabulary has; how many tokens this one has, only a tokenizer tells.
_MAX_TOKEN_ID = 2**20 - 1
_ROLE_LABELS = {"developer": "System"}

RuntimeInput = Turn | list[int]


def build_input(
    prompt: Prompt, tokenizer: ChatTokenizer | None, context_length: int
) -> RuntimeInput:
    """Return what to run for a prompt.

    Raises:
        PromptTooLong: its tokens do not fit the context.
        RequestRejected: it is empty, or not what the runtime can take.
    """
    given = _convert_prompt(prompt, tokenizer)
    if not given:
        raise RequestRejected("prompt: there must be at least one token")
    tokens = 0
    if isinstance(given, list):
        tokens = len(given)
    elif tokenizer is not None:
        # The runtime's template adds to it, so this is the least that it will be.
        tokens = len(tokenizer.encode(given.text, special=False))
    if tokens >= context_length:
        raise PromptTooLong(
            f"prompt: {tokens} tokens do not fit the context of {context_length} tokens",
            prompt_tokens=tokens,
            context_length=context_length,
        )
    return given


def build_embedding_input(
    text: RenderedPrompt, tokenizer: ChatTokenizer, context_length: int
) -> list[int]:
    """Return the tokens of a text to make a vector of, begun and ended as the tokenizer does.

    Raises:
        PromptTooLong: they do not fit the context.
        RequestRejected: there are none, or one of them is not in the vocabulary.
    """
    if isinstance(text, str):
        tokens = tokenizer.encode(text, special=True)
    else:
        tokens = _check_tokens(text, tokenizer.has_token, "input")
    if not tokens:
        raise RequestRejected("input: there must be at least one token", param="input")
    if len(tokens) > context_length:
        raise PromptTooLong(
            f"input: {len(tokens)} tokens do not fit the context of {context_length} tokens",
            prompt_tokens=len(tokens),
            context_length=context_length,
            param="input",
        )
    return tokens


def require_tokens(given: RuntimeInput) -> list[int]:
    """Return an input that is tokens. Raises UnsupportedParameter for a turn of the runtime's."""
    if isinstance(given, Turn):
        raise UnsupportedParameter(
            "messages: there is no chat template beside the model (RKLLM_TOKENIZER)",
            param="messages",
        )
    return given


def _check_tokens(given: Sequence[int], known: Callable[[int], bool], param: str) -> list[int]:
    for token in given:
        if not known(token):
            raise RequestRejected(f"{param}: there is no token {token}", param=param)
    return list(given)


def _convert_prompt(prompt: Prompt, tokenizer: ChatTokenizer | None) -> RuntimeInput:
    if isinstance(prompt, tuple):
        known = tokenizer.has_token if tokenizer is not None else _is_possible_token
        return _check_tokens(prompt, known, "prompt")
    if tokenizer is not None:
        if isinstance(prompt, str):
            return tokenizer.encode(prompt, special=True)
        if tokenizer.has_template:
            return tokenizer.encode(tokenizer.render(prompt), special=False)
    if isinstance(prompt, str):
        return _build_turn(prompt)
    return _build_turn(join_turns(prompt), thinking=prompt.template_kwargs.get("enable_thinking"))


def _is_possible_token(number: int) -> bool:
    return 0 <= number <= _MAX_TOKEN_ID


def _build_turn(text: str, *, thinking: object = None) -> Turn:
    if "\0" in text:
        raise RequestRejected("prompt: a zero character would end it early for the RKLLM runtime")
    return Turn(text, enable_thinking=thinking is True)


def join_turns(chat: Chat) -> str:
    """Return a whole conversation as the text of one user's turn.

    What is left where the runtime takes one turn and the model's template is not at hand: nothing
    is dropped, though the model has not been trained to read it like this.
    """
    turns = (tools_as_text(chat) if chat.tools else tool_calls_as_text(chat)).messages
    if len(turns) == 1:
        return turns[0].content
    labelled = [f"{_LABELS.get(turn.role, turn.role.title())}: {turn.content}" for turn in turns]
    return "\n\n".join([*labelled, "Assistant:"])
