"""Check the content or the tool calls of an answer against a schema, without its reasoning."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from engine.reasoning import THINK_CLOSE
from handler.openai.reply_parser import ReplyParser
from handler.openai.tools import Tools
from validation.findings import Issue
from validation.verdict import AnswerCheck


class ContentCheck:
    """Applies a check to the content of an answer, or to each of its tool calls.

    Models write reasoning and tool-call markers around the JSON in different ways. Without this
    class a correct answer with such markers would fail the check and be regenerated. A text that
    passes unparsed is accepted. Thread-safe.
    """

    def __init__(self, check: AnswerCheck, tools: Tools) -> None:
        self._check = check
        self._tools = tools

    def find_issues(self, text: str) -> tuple[Issue, ...]:
        """Return the issues of the content, or of all tool calls if there are any."""
        if not self._check.find_issues(text):
            return ()
        # A closing tag implies reasoning before it, whether the model or the template opened it.
        parser = ReplyParser(self._tools, starts_in_reasoning=THINK_CLOSE in text)
        parser.push(text)
        parser.close()
        message = parser.message()
        parts = [message["content"] or ""]
        if parser.calls:
            parts = [_encode_call(call["function"]) for call in parser.calls]
        return tuple(
            dict.fromkeys(issue for part in parts for issue in self._check.find_issues(part))
        )


def _encode_call(function: Mapping[str, str]) -> str:
    """Return a tool call as JSON text in the form of its schema: arguments as an object."""
    name = orjson.dumps(function["name"]).decode()
    return f'{{"name": {name}, "arguments": {function["arguments"]}}}'
