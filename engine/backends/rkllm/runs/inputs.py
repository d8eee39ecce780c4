"""Convert prompts to the runtime's input: tokens if there is a tokenizer, else one user turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.backends.rkllm.runs.run import MultimodalPrompt, RuntimeInput, UserTurn
from engine.backends.rkllm.tokenizer import ChatTokenizer
from engine.errors import PromptTooLong, RequestRejected, UnsupportedParameter
from engine.prompts.tool_prompt import tool_calls_as_text, tools_as_text
from engine.request import Chat, Prompt, RenderedPrompt

# Above the ids of every known vocabulary; without a tokenizer its real size is unknown.
_MAX_TOKEN_ID = 2**20 - 1
_ROLE_LABELS = {"developer": "System"}


def build_input(
    prompt: Prompt, tokenizer: ChatTokenizer | None, context_length: int
) -> RuntimeInput:
    """Return the runtime's input for a prompt.

    Raises:
        PromptTooLong: its tokens do not fit the context.
        RequestRejected: it is empty, or the runtime cannot process it.
    """
    runtime_input = _convert_prompt(prompt, tokenizer)
    if not runtime_input:
        raise RequestRejected("prompt: there must be at least one token")
    tokens = 0
    if isinstance(runtime_input, list):
        tokens = len(runtime_input)
    elif tokenizer is not None and isinstance(runtime_input, UserTurn):
        # A lower bound: the runtime's template adds tokens.
        tokens = len(tokenizer.encode(runtime_input.text, special=False))
    if tokens >= context_length:
        raise PromptTooLong(
            f"prompt: {tokens} tokens do not fit the context of {context_length} tokens",
            prompt_tokens=tokens,
            context_length=context_length,
        )
    return runtime_input


def build_embedding_input(
    text: RenderedPrompt, tokenizer: ChatTokenizer, context_length: int
) -> list[int]:
    """Return the tokens of a text to embed, with the special tokens that the tokenizer adds.

    Raises:
        PromptTooLong: the tokens do not fit the context.
        RequestRejected: there are no tokens, or one is not in the vocabulary.
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


def count_known_tokens(runtime_input: RuntimeInput) -> int:
    """Return the number of tokens of an input; 0 for a text, which only the runtime tokenises."""
    if isinstance(runtime_input, MultimodalPrompt):
        return runtime_input.tokens
    return len(runtime_input) if isinstance(runtime_input, list) else 0


def require_tokens(runtime_input: RuntimeInput) -> list[int]:
    """Return the input's tokens. Raises UnsupportedParameter if it is a user turn as text."""
    if not isinstance(runtime_input, list):
        raise UnsupportedParameter(
            "messages: there is no chat template beside the model (RKLLM_TOKENIZER)",
            param="messages",
        )
    return runtime_input


def _check_tokens(tokens: Sequence[int], is_known: Callable[[int], bool], param: str) -> list[int]:
    for token in tokens:
        if not is_known(token):
            raise RequestRejected(f"{param}: there is no token {token}", param=param)
    return list(tokens)


def _convert_prompt(prompt: Prompt, tokenizer: ChatTokenizer | None) -> RuntimeInput:
    if isinstance(prompt, tuple):
        is_known = tokenizer.has_token if tokenizer is not None else _is_possible_token
        return _check_tokens(prompt, is_known, "prompt")
    if tokenizer is not None:
        if isinstance(prompt, str):
            return tokenizer.encode(prompt, special=True)
        if tokenizer.has_template:
            return tokenizer.encode_chat(prompt)
    if isinstance(prompt, str):
        return _build_turn(prompt)
    return _build_turn(join_turns(prompt), thinking=prompt.template_kwargs.get("enable_thinking"))


def _is_possible_token(number: int) -> bool:
    return 0 <= number <= _MAX_TOKEN_ID


def _build_turn(text: str, *, thinking: object = None) -> UserTurn:
    if "\0" in text:
        raise RequestRejected("prompt: a zero character would end it early for the RKLLM runtime")
    return UserTurn(text, enable_thinking=thinking is True)


def join_turns(chat: Chat, image_marker: str = "") -> str:
    """Return a conversation as the text of one user turn, and a text in the place of each image.

    Used if the runtime accepts only one turn and the model's template is not available. No turn is
    dropped, but the model was not trained on this format.
    """
    turns = (tools_as_text(chat) if chat.tools else tool_calls_as_text(chat)).messages
    contents = [str(turn.to_template(image_marker)["content"]) for turn in turns]
    if len(turns) == 1:
        return contents[0]
    labelled = [
        f"{_ROLE_LABELS.get(turn.role, turn.role.title())}: {content}"
        for turn, content in zip(turns, contents, strict=True)
    ]
    return "\n\n".join([*labelled, "Assistant:"])
