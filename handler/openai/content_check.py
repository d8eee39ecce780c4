"""What of an answer has to fit a schema: what is said or called, not what was thought before."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from engine.reasoning import THINK_CLOSE
from handler.openai.reply import ReplyParser
from handler.openai.tools import Tools
from validation.findings import Issue
from validation.verdict import AnswerCheck


class ContentCheck:
    """A check of answers whose text may have thoughts or the marks of a call around it.

    Models write both in their own ways, so without this an answer that is right would be generated
    a second time. A text that fits as it stands is taken so. Any thread may use it.
    """

    def __init__(self, check: AnswerCheck, tools: Tools) -> None:
        self._check = check
        self._tools = tools

    def issues(self, text: str) -> tuple[Issue, ...]:
        """Return what is wrong with what an answer says, or with any of its calls."""
        if not self._check.issues(text):
            return ()
        # Where it has an end of thoughts, whether or not the template began them.
        reply = ReplyParser(self._tools, thinking=THINK_CLOSE in text)
        reply.push(text)
        reply.close()
        message = reply.message()
        parts = [message["content"] or ""]
        if reply.calls:
            parts = [_as_json(call["function"]) for call in reply.calls]
        return tuple(dict.fromkeys(issue for part in parts for issue in self._check.issues(part)))


def _as_json(called: Mapping[str, str]) -> str:
    """Return a call as the schemas of calls have it, its arguments no text any more."""
    name = orjson.dumps(called["name"]).decode()
    return f'{{"name": {name}, "arguments": {called["arguments"]}}}'
