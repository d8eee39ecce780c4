"""The token counts of a batch's answers, from the answers themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import orjson

from engine import Usage
from handler.apis.calls import read_usage

# Ollama's API has its counts beside the answer, not in `usage`.
_OLLAMA_COUNTS = ("prompt_eval_count", "eval_count")


@dataclass(slots=True)
class TokenTotals:
    """The tokens of the answers that are kept, and how many answers have no token counts.

    Each line has one answer, so a line that was tried again, or that an earlier run answered,
    counts once. Failed lines have no token counts and do not count.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    answers: int = 0
    answers_without_counts: int = 0

    @classmethod
    def from_answers(cls, answers: Iterable[bytes]) -> Self:
        """Return the totals of lines of an output."""
        totals = cls()
        for answer in answers:
            totals.add_answer(orjson.loads(answer))
        return totals

    def add_answer(self, answer: Mapping[str, Any]) -> None:
        """Add a line of an output: an answered OpenAI request, or a completed job."""
        self.answers += 1
        response = answer.get("response")
        body = response.get("body") if isinstance(response, dict) else answer.get("output")
        usage = find_usage(body)
        if usage is None:
            self.answers_without_counts += 1
        else:
            self.prompt_tokens += usage.prompt_tokens
            self.completion_tokens += usage.completion_tokens

    def format(self) -> str:
        """Return the totals as one sentence, which does not guess missing counts."""
        if self.answers and self.answers_without_counts == self.answers:
            return "tokens: unknown, the answers have no token counts"
        text = f"tokens: {self.prompt_tokens:,} prompt, {self.completion_tokens:,} completion"
        if self.answers_without_counts:
            text += (
                f", without {self.answers_without_counts:,} of {self.answers:,} answers that have "
                "no token counts"
            )
        return text


def find_usage(body: object) -> Usage | None:
    """Return the token counts of an answer in the form of any API, or of a job's output.

    Return None if it has none, or if they are not whole numbers.
    """
    if not isinstance(body, dict):
        return None
    usage = body.get("usage")
    if usage is None and not any(name in body for name in _OLLAMA_COUNTS):
        return None
    try:
        if usage is not None and "input" in usage:
            counts = Usage(usage["input"], usage["output"])
        else:
            counts = read_usage(body)
    except (AttributeError, KeyError, TypeError):
        return None
    is_valid = all(type(count) is int and count >= 0 for count in counts[:2])
    return counts if is_valid else None
