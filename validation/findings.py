"""What rules find in an answer: passages that were removed, issues and notices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Removal(NamedTuple):
    """Something that was taken out: `raw[start:end]` of the model's text, in characters.

    `replacement` is what stands there now, mostly nothing. A tuple: there may be 100,000 of them.
    """

    rule: str
    start: int
    end: int
    replacement: str = ""


@dataclass(frozen=True, slots=True)
class Issue:
    """One finding of a check: the stable id of its rule and a sentence for people.

    Whether it is an issue or a notice depends on which of the two lists of a `Verdict` it is in.
    """

    rule: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An answer and what it answers; `system` is the system text that must not leak."""

    prompt: str
    text: str
    finish_reason: str = "stop"
    system: str = ""
