"""The chat template of a model: untrusted code of its author, which runs in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from engine.errors import ModelLoadFailed
from engine.prompts.chat_template import template_error
from engine.request import Chat, Message


class ChatTemplate:
    """A compiled chat template; immutable and thread-safe.

    `special_tokens` are the texts of special tokens by their names. Without a `source` there is no
    template, and `render` must not be called.

    Raises:
        ModelLoadFailed: the template in the file `path` is damaged.
    """

    def __init__(self, path: Path, source: Any, special_tokens: Mapping[str, str]) -> None:
        self.source = str(source)
        self._special_tokens = special_tokens
        try:
            self._compiled = _build_environment().from_string(source)
        except Exception as error:
            raise ModelLoadFailed(
                f"RKLLM_TOKENIZER: the chat template in {path} is damaged: {error}"
            ) from error

    def render(self, chat: Chat, image_marker: str) -> str:
        """Render a chat, with a text in the place of each image. Raises RequestRejected."""
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
                self._compiled.render(messages=messages, add_generation_prompt=True, **variables)
            )
        except Exception as error:
            # A template is a program, so it may raise any exception.
            raise template_error(str(error)) from error


def _template_message(message: Message, image_marker: str) -> dict[str, Any]:
    """Return a turn for a template, which expects tool arguments as values instead of JSON text."""
    turn = message.to_template(image_marker)
    if message.reasoning and not (message.content and message.tool_calls):
        # The name in gpt-oss's template, which refuses it together with a content and calls.
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
