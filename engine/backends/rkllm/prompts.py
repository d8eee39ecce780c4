"""Render chats and tokenise text with the model's own template and tokenizer files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from engine.backends.base import TokenizerInfo
from engine.backends.rkllm.time_limit import TimeLimitExceededError, run_with_time_limit
from engine.errors import ModelLoadFailed, RequestRejected, UnsupportedParameter
from engine.prompts import reasoning
from engine.prompts.answer_marks import find_answer_marks
from engine.prompts.call_form import find_call_form
from engine.prompts.chat_template import takes_late_system, template_error, template_markers
from engine.prompts.control_marks import ControlMarks
from engine.prompts.tool_prompt import render_with_tools
from engine.reply.reply_format import ToolForm
from engine.request import Chat, Message

_TOKENIZER = "tokenizer.json"
_CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
_TEMPLATE = "chat_template.jinja"
# Time limit for the trial of a chat template while the model is loaded.
_TEMPLATE_TRIAL_S = 2.0


class ChatTokenizer:
    """Renders chats and counts tokens without the runtime, which accepts only one turn.

    Reads the files of Hugging Face models: tokenizer.json, tokenizer_config.json, and
    chat_template.jinja if the template is not in the config. Templates are untrusted code from the
    model's author, so they run in a sandbox. Immutable and thread-safe.

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
        path = folder / _TOKENIZER
        text = _read_text(path)
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
        config = _read_config(folder / _CONFIG)
        self._special_tokens = {
            name: _token_text(config.get(name)) for name in ("bos_token", "eos_token", "unk_token")
        }
        # The text of the chat template; empty without one.
        self._template_source = ""
        self._template = self._compile_template(folder, config)
        configured = self._tokenizer.token_to_id(self._special_tokens["eos_token"])
        # The ids that end an answer; the two files may name different ones.
        self.end_tokens = frozenset(
            token for token in (configured, *_generation_end_tokens(folder)) if token is not None
        )

    def _compile_template(self, folder: Path, config: dict[str, Any]) -> Any:
        source = config.get("chat_template")
        path = folder / _CONFIG
        if (folder / _TEMPLATE).is_file():
            path = folder / _TEMPLATE
            source = _read_text(path)
        if isinstance(source, list):
            # A list of named templates; "default" is the one for chats.
            templates = {
                entry.get("name"): entry.get("template") for entry in source if type(entry) is dict
            }
            source = templates.get("default")
        if not source:
            return None
        self._template_source = str(source)
        try:
            return _build_environment().from_string(source)
        except Exception as error:
            raise ModelLoadFailed(
                f"RKLLM_TOKENIZER: the chat template in {path} is damaged: {error}"
            ) from error

    @property
    def has_template(self) -> bool:
        """Whether there is a chat template; without one only plain prompts are supported."""
        return self._template is not None

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
            if text and (is_special or text in self._template_source)
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

    def render(self, chat: Chat, image_marker: str = "") -> str:
        """Render a chat with the model's template, and a text in the place of each image.

        Raises:
            RequestRejected: the template refused the messages; the error contains its reason.
        """
        return reasoning.continue_last(
            chat,
            lambda chat: render_with_tools(
                chat, lambda chat: self._apply_template(chat, image_marker)
            ),
        )

    def _apply_template(self, chat: Chat, image_marker: str) -> str:
        # Templates expect `tools` and `documents` to be defined always.
        tools = [dict(tool) for tool in chat.tools] or None
        variables = {
            "tools": tools,
            "documents": None,
            **self._special_tokens,
            **chat.template_kwargs,
        }
        messages = [_template_message(message, image_marker) for message in chat.messages]
        try:
            return str(
                self._template.render(messages=messages, add_generation_prompt=True, **variables)
            )
        except Exception as error:
            # A template is a program, so it may raise any exception.
            raise template_error(str(error)) from error

    def describe(self) -> TokenizerInfo:
        """Return the special tokens and the chat template."""
        return {
            "bos_token": self._special_tokens["bos_token"] or None,
            "eos_token": self._special_tokens["eos_token"] or None,
            "chat_template": self._template_source or None,
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
        require_tokenizer: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return require_tokenizer

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
    """Return the tokenizer. Raises UnsupportedParameter if it is None."""
    if tokenizer is None:
        raise UnsupportedParameter(
            f"{param}: there is no tokenizer.json beside the model (RKLLM_TOKENIZER)", param=param
        )
    return tokenizer


def find_tokenizer_folder(model: Path, setting: str | None) -> Path | None:
    """Return the folder of the tokenizer files: RKLLM_TOKENIZER, else one at the model.

    Raises:
        ModelLoadFailed: RKLLM_TOKENIZER names a folder without tokenizer files.
    """
    if setting is not None:
        folder = Path(setting)
        if folder.is_file():
            folder = folder.parent
        if not (folder / _TOKENIZER).is_file():
            raise ModelLoadFailed(f"RKLLM_TOKENIZER: there is no {folder / _TOKENIZER}")
        return folder
    for folder in (model.with_suffix(""), model.parent):
        if (folder / _TOKENIZER).is_file():
            return folder
    return None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ModelLoadFailed(f"RKLLM_TOKENIZER: there is no {path}") from error
    except OSError as error:
        raise ModelLoadFailed(
            f"RKLLM_TOKENIZER: {path} cannot be read: {error.strerror}"
        ) from error
    except UnicodeDecodeError as error:
        raise ModelLoadFailed(f"RKLLM_TOKENIZER: {path} is not text: {error}") from error


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(_read_text(path))
    except ValueError as error:
        raise ModelLoadFailed(f"RKLLM_TOKENIZER: {path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelLoadFailed(f"RKLLM_TOKENIZER: {path} must hold an object")
    return config


def _token_text(value: Any) -> str:
    """Return the text of a special token, which the config has as a string or as an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _template_message(message: Message, image_marker: str) -> dict[str, Any]:
    """Return a turn for a template, which expects tool arguments as values instead of JSON text."""
    turn = message.to_template(image_marker)
    if message.reasoning and not (message.content and message.tool_calls):
        # The name in gpt-oss's template, which refuses it beside a content and calls.
        turn["thinking"] = message.reasoning
    for call in turn.get("tool_calls", ()):
        function = dict(call["function"])
        # Arguments that are not JSON are passed on as the client sent them.
        with suppress(ValueError):
            function["arguments"] = json.loads(function["arguments"])
        call["function"] = function
    return turn


def _build_environment() -> Any:
    """Build a sandboxed jinja2 environment with the settings that chat templates expect.

    The settings are those of utils/chat_template_utils.py in transformers.
    """
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Node
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        # `{% generation %}` marks the assistant's text for training; it has no effect here.
        tags = {"generation"}  # noqa: RUF012 - as its base class has it

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return environment


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    # Replaces jinja2's filter, which escapes for HTML.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)


def _generation_end_tokens(folder: Path) -> list[int]:
    """Return the end tokens of generation_config.json, which may differ from the tokenizer's."""
    path = folder / GENERATION_CONFIG
    if not path.is_file():
        return []
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        end_ids = config.get("eos_token_id")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelLoadFailed(f"RKLLM_TOKENIZER: {path} cannot be read: {error}") from error
    end_ids = end_ids if isinstance(end_ids, list) else [end_ids]
    return [end for end in end_ids if isinstance(end, int)]
