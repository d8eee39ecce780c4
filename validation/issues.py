"""Issues of an answer, passages removed from it, and the answer to validate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Removal(NamedTuple):
    """A removed passage: `raw[start:end]` of the model's text, in characters.

    `replacement` is the text in its place, usually empty. A named tuple, because an answer can have
    100,000 removals.
    """

    rule: str
    start: int
    end: int
    replacement: str = ""


@dataclass(frozen=True, slots=True)
class Issue:
    """The objection of a check: the stable id of its rule and a sentence for users.

    A `Verdict` has two lists of these: issues and notices.
    """

    rule: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An answer and its prompt; `system` is the system prompt, which must not leak.

    `text` is the answer without the model's reasoning and without its tool calls. `calls` are these
    calls, each as JSON: an answer with calls needs no text. With `constrains_calls` the checks of
    the request, such as its schema, apply to the calls.
    """

    prompt: str
    text: str
    finish_reason: str = "stop"
    system: str = ""
    calls: tuple[str, ...] = ()
    constrains_calls: bool = False
