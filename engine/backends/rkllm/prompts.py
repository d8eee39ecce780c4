"""Chats as the model was trained to read them: its own template and tokenizer, from files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from engine import reasoning
from engine.backends.rkllm.time_limit import TookTooLongError, within
from engine.chat_template import template_markers
from engine.errors import ModelLoadFailed, RequestRejected, UnsupportedParameter
from engine.request import Chat, Message
from engine.tool_prompt import render_with_tools

_TOKENIZER = "tokenizer.json"
_CONFIG = "tokenizer_config.json"
_TEMPLATE = "chat_template.jinja"
# For a template that is tried while the model is loaded.
_TRY_S = 2.0


class ChatTokenizer:
    """Renders chats and counts tokens without the runtime, which takes one turn at a time.

    Read from the files that Hugging Face models have: tokenizer.json, tokenizer_config.json, and
    chat_template.jinja where the template is not in the config. Templates come with models from
    anywhere, so they run in a sandbox. Only read after it is built; any thread may use it.

    Raises:
        ModelLoadFailed: a file is missing, damaged, or a package to read it with is not there.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import jinja2  # noqa: F401 - said here, not halfway through
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ModelLoadFailed(
                "RKLLM_TOKENIZER: reading tokenizer files needs tokenizers and jinja2: "
                "`pip install 'worker-rkllm[rkllm]'` adds them"
            ) from error
        path = folder / _TOKENIZER
        text = _text(path)
        try:
            self._tokenizer: Any = Tokenizer.from_str(text)
            # What it was trained with would cut prompts off, and nobody would know.
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            # Some damage shows only in use.
            self.encode("a", special=True)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # The library raises Exception itself, and what is not even one when it panics.
            raise ModelLoadFailed(f"RKLLM_TOKENIZER: {path} is no tokenizer: {error}") from error
        config = _config(folder / _CONFIG)
        self._special = {
            name: _token(config.get(name)) for name in ("bos_token", "eos_token", "unk_token")
        }
        self._template = self._compiled(folder, config)

    def _compiled(self, folder: Path, config: dict[str, Any]) -> Any:
        source = config.get("chat_template")
        path = folder / _CONFIG
        if (folder / _TEMPLATE).is_file():
            path = folder / _TEMPLATE
            source = _text(path)
        if isinstance(source, list):
            # Several by name; the default one is for chats.
            named = {
                each.get("name"): each.get("template") for each in source if type(each) is dict
            }
            source = named.get("default")
        if not source:
            return None
        try:
            return _environment().from_string(source)
        except Exception as error:
            raise ModelLoadFailed(
                f"RKLLM_TOKENIZER: the chat template in {path} is damaged: {error}"
            ) from error

    @property
    def has_template(self) -> bool:
        """Whether there is a chat template; without one there are only plain prompts."""
        return self._template is not None

    @cached_property
    def rendered_question(self) -> str | None:
        """A chat of one user turn, rendered; None without a template that can render it.

        Some templates refuse such a chat or never end: a request that runs into that gets an error.
        """
        if not self.has_template:
            return None
        try:
            return within(_TRY_S, lambda: self.render(reasoning.PROBE_CHAT))
        except (RequestRejected, TookTooLongError):
            return None

    @property
    def opens_thoughts(self) -> bool:
        """Whether the template itself begins the thoughts of every answer, asked for or not."""
        rendered = self.rendered_question
        return rendered is not None and reasoning.starts_in_reasoning(rendered)

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that mark turns in a prompt rendered by the template."""
        special = (text for text, is_special in self.added_tokens().values() if is_special)
        return template_markers(self.rendered_question or "", special)

    def render(self, chat: Chat) -> str:
        """Return the prompt that the model's template makes of a chat.

        Raises:
            RequestRejected: the template refuses these messages; its own words say why.
        """
        return render_with_tools(chat, self._rendered)

    def _rendered(self, chat: Chat) -> str:
        # Templates are written for a caller that passes these two always.
        tools = [dict(tool) for tool in chat.tools] or None
        usual = {"tools": tools, "documents": None, **self._special, **chat.template_kwargs}
        messages = [_parsed(message) for message in chat.messages]
        try:
            return str(
                self._template.render(messages=messages, add_generation_prompt=True, **usual)
            )
        except Exception as error:
            # A template is a program: it may raise anything.
            raise RequestRejected(
                f"messages: the model's chat template cannot take them: {error}"
            ) from error

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return token ids; `special` adds those that begin a prompt, which a template has."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, special ones as they are written."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    def pieces(self, text: str) -> list[str]:
        """Return the part of a text that each of its tokens stands for; joined they are the text.

        A character of several tokens belongs to the first of them.
        """
        ends = [end for _, end in self._tokenizer.encode(text, add_special_tokens=False).offsets]
        starts = [0, *ends[:-1]]
        if ends:
            ends[-1] = len(text)
        return [text[start:end] for start, end in zip(starts, ends, strict=True)]

    @property
    def end_token(self) -> str:
        """The token that ends an answer, "" where tokenizer_config.json does not say."""
        return self._special["eos_token"]

    def vocabulary(self) -> dict[str, int]:
        """Return every token as the tokenizer writes it, with its number."""
        known: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return known

    def added_tokens(self) -> dict[int, tuple[str, bool]]:
        """Return by number those that stand for themselves: their text, whether it is special."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {number: (token.content, token.special) for number, token in added.items()}

    def decoder(self) -> Any:
        """Return how tokens become text, as tokenizer.json has it; None where it does not say."""
        decoder = self._tokenizer.decoder
        return None if decoder is None else json.loads(decoder.__getstate__())

    def has_token(self, number: int) -> bool:
        """Whether there is a token of that number."""
        return 0 <= number < 2**32 and self._tokenizer.id_to_token(number) is not None


def known(tokenizer: ChatTokenizer | None, param: str = "prompt") -> ChatTokenizer:
    """Return the tokenizer that a side call needs. Raises UnsupportedParameter without one."""
    if tokenizer is None:
        raise UnsupportedParameter(
            f"{param}: there is no tokenizer.json beside the model (RKLLM_TOKENIZER)", param=param
        )
    return tokenizer


def folder_for(model: Path, given: str | None) -> Path | None:
    """Return where the tokenizer files of a model are: RKLLM_TOKENIZER, else beside the model.

    Raises:
        ModelLoadFailed: RKLLM_TOKENIZER names a place without them.
    """
    if given is not None:
        folder = Path(given)
        if folder.is_file():
            folder = folder.parent
        if not (folder / _TOKENIZER).is_file():
            raise ModelLoadFailed(f"RKLLM_TOKENIZER: there is no {folder / _TOKENIZER}")
        return folder
    for folder in (model.with_suffix(""), model.parent):
        if (folder / _TOKENIZER).is_file():
            return folder
    return None


def _text(path: Path) -> str:
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


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(_text(path))
    except ValueError as error:
        raise ModelLoadFailed(f"RKLLM_TOKENIZER: {path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelLoadFailed(f"RKLLM_TOKENIZER: {path} must hold an object")
    return config


def _token(value: Any) -> str:
    """Return a special token, which a config has as text or as an object around it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _parsed(message: Message) -> dict[str, Any]:
    """Return a turn for a template, which wants arguments as values and not as their text."""
    turn = message.to_template()
    for call in turn.get("tool_calls", ()):
        function = dict(call["function"])
        # What is no JSON the template gets as the client sent it.
        with suppress(ValueError):
            function["arguments"] = json.loads(function["arguments"])
        call["function"] = function
    return turn


def _environment() -> Any:
    """Return what templates run in: the settings they are written for, and a sandbox.

    See utils/chat_template_utils.py of transformers.
    """
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Node
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        # Marks for training what the assistant said; here it is text like the rest.
        tags = {"generation"}  # noqa: RUF012 - as its base class has it

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return environment


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    # Not jinja2's own, which escapes for HTML.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)
