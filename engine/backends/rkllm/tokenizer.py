"""Tokenise text and render chats with the tokenizer files of a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from engine.backends.base import TokenizerInfo
from engine.backends.rkllm.template import ChatTemplate
from engine.backends.rkllm.time_limit import TimeLimitExceededError, run_with_time_limit
from engine.backends.rkllm.tokenizer_files import (
    CONFIG,
    TOKENIZER,
    find_template_source,
    read_config,
    read_end_tokens,
    read_text,
    token_text,
)
from engine.errors import ModelLoadFailed, RequestRejected, UnsupportedParameter
from engine.prompts import reasoning
from engine.prompts.answer_marks import find_answer_marks
from engine.prompts.call_form import find_call_form
from engine.prompts.chat_template import takes_late_system, template_markers
from engine.prompts.control_marks import ControlMarks
from engine.prompts.tool_prompt import render_with_tools
from engine.reply.reply_format import ToolForm
from engine.request import Chat, Message

# Time limit for the trial of a chat template while the model is loaded.
_TEMPLATE_TRIAL_S = 2.0


class ChatTokenizer:
    """Renders chats and counts tokens without the runtime, which accepts only one turn.

    Reads the files of Hugging Face models: tokenizer.json, tokenizer_config.json, and
    chat_template.jinja if the template is not in the config. Immutable and thread-safe.

    Raises:
        ModelLoadFailed: a file is missing or damaged, or a package to read it is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import jinja2  # noqa: F401 - a missing package is reported here, not at first use
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ModelLoadFailed(
                "RKLLM_TOKENIZER: reading tokenizer files needs tokenizers and jinja2: "
                "`pip install jinja2 tokenizers` adds them"
            ) from error
        path = folder / TOKENIZER
        text = read_text(path)
        try:
            self._tokenizer: Any = Tokenizer.from_str(text)
            # The file may contain training settings, which would silently truncate prompts.
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            # Some damage shows only when the tokenizer is used.
            self.encode("a", special=True)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # The library raises `Exception` for errors, and a `BaseException` when it panics.
            raise ModelLoadFailed(f"RKLLM_TOKENIZER: {path} is no tokenizer: {error}") from error
        config = read_config(folder / CONFIG)
        self._special_tokens = {
            name: token_text(config.get(name)) for name in ("bos_token", "eos_token", "unk_token")
        }
        self._template = ChatTemplate(*find_template_source(folder, config), self._special_tokens)
        configured = self._tokenizer.token_to_id(self._special_tokens["eos_token"])
        # The ids that end an answer; the two files may name different ones.
        self.end_tokens = frozenset(
            token for token in (configured, *read_end_tokens(folder)) if token is not None
        )

    @property
    def has_template(self) -> bool:
        """Whether there is a chat template; without one only plain prompts are supported."""
        return bool(self._template.source)

    @cached_property
    def rendered_question(self) -> str | None:
        """A rendered chat of one user turn; None if there is no template or it cannot render it.

        Some templates refuse such a chat or never end; a request then fails with an error.
        """
        if not self.has_template:
            return None
        try:
            return run_with_time_limit(_TEMPLATE_TRIAL_S, lambda: self.render(reasoning.PROBE_CHAT))
        except (RequestRejected, TimeLimitExceededError):
            return None

    @property
    def starts_in_reasoning(self) -> bool:
        """Whether the template starts every answer in the model's reasoning."""
        rendered = self.rendered_question
        return rendered is not None and reasoning.starts_in_reasoning(rendered)

    @property
    def takes_late_system(self) -> bool:
        """Whether the template takes system messages after the first message."""
        if self.rendered_question is None:
            return True
        try:
            return run_with_time_limit(_TEMPLATE_TRIAL_S, lambda: takes_late_system(self.render))
        except TimeLimitExceededError:
            return False

    @property
    def call_form(self) -> ToolForm | None:
        """The form of calls that the template asks for, if a grammar can hold it."""
        if self.rendered_question is None:
            return None
        try:
            return run_with_time_limit(
                _TEMPLATE_TRIAL_S, lambda: find_call_form(self.render, self.control_tokens)
            )
        except TimeLimitExceededError:
            return None

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that mark turns in a prompt that the template rendered."""
        special = (text for text, is_special in self.added_tokens().values() if is_special)
        return template_markers(self.rendered_question or "", special)

    @cached_property
    def control_tokens(self) -> tuple[str, ...]:
        """The special tokens, and the other added tokens that the chat template writes."""
        return tuple(
            text
            for text, is_special in self.added_tokens().values()
            if text and (is_special or text in self._template.source)
        )

    @cached_property
    def answer_marks(self) -> tuple[str, ...]:
        """The marks of reasoning and calls that are one token."""
        return find_answer_marks(lambda text: self.encode(text, special=False))

    @cached_property
    def _control_marks(self) -> ControlMarks:
        return ControlMarks(self.control_tokens, self.answer_marks)

    def encode_chat(self, chat: Chat) -> list[int]:
        """Return the token ids of a rendered chat, with plain text where messages have marks.

        Raises:
            RequestRejected: the template refused the messages; the error contains its reason.
        """
        rendered = self._control_marks.render(chat, self.render)
        return [token for piece in rendered.pieces for token in self.encode(piece, special=False)]

    def encode_plain(self, text: str) -> list[int]:
        """Return the token ids of a text, in which control tokens are read as plain text."""
        chat = Chat((Message("user", text),))
        rendered = self._control_marks.render(chat, lambda chat: chat.messages[0].content)
        return [token for piece in rendered.pieces for token in self.encode(piece, special=False)]

    def render(self, chat: Chat, image_marker: str = "") -> str:
        """Render a chat with the model's template, and a text in the place of each image.

        Raises:
            RequestRejected: the template refused the messages; the error contains its reason.
        """
        return reasoning.continue_last(
            chat,
            lambda chat: render_with_tools(
                chat, lambda chat: self._template.render(chat, image_marker)
            ),
        )

    def describe(self) -> TokenizerInfo:
        """Return the special tokens and the chat template."""
        return {
            "bos_token": self._special_tokens["bos_token"] or None,
            "eos_token": self._special_tokens["eos_token"] or None,
            "chat_template": self._template.source or None,
        }

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return token ids; `special` adds the tokens that start a prompt (templates have them)."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, including special tokens."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    def pieces(self, text: str) -> list[str]:
        """Split a text into the texts of its tokens; joined, they equal the text.

        A character of several tokens belongs to the first of them.
        """
        ends = [end for _, end in self._tokenizer.encode(text, add_special_tokens=False).offsets]
        starts = [0, *ends[:-1]]
        if ends:
            ends[-1] = len(text)
        return [text[start:end] for start, end in zip(starts, ends, strict=True)]

    def vocabulary(self) -> dict[str, int]:
        """Return the ids of all tokens by their form in tokenizer.json."""
        ids: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return ids

    def added_tokens(self) -> dict[int, tuple[str, bool]]:
        """Return the added tokens by id: their text, and whether they are special."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {number: (token.content, token.special) for number, token in added.items()}

    def decoder(self) -> Any:
        """Return the decoder of tokenizer.json, which converts tokens to text; None without one."""
        decoder = self._tokenizer.decoder
        return None if decoder is None else json.loads(decoder.__getstate__())

    def has_token(self, number: int) -> bool:
        """Return whether a token id exists."""
        return 0 <= number < 2**32 and self._tokenizer.id_to_token(number) is not None


def require_tokenizer(tokenizer: ChatTokenizer | None, param: str = "prompt") -> ChatTokenizer:
    """Return the tokenizer. Raises UnsupportedParameter without one."""
    if tokenizer is None:
        raise UnsupportedParameter(
            f"{param}: there is no tokenizer.json beside the model (RKLLM_TOKENIZER)", param=param
        )
    return tokenizer
