"""The parts that a model's output consists of, as a parser finds them one after the other."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """Some of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class TextPart:
    """Some of the answer's text; `start` is its position in the model's output, in characters."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class CallStart:
    """The start of a call of the named function; its arguments follow.

    Readers know only the name; the parser adds the call's number in the output, and its id.
    """

    name: str
    index: int = 0
    id: str = ""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Some of the arguments of the call that has started last, as JSON text."""

    text: str
    index: int = 0


Part = ReasoningPart | TextPart | CallStart | CallArguments

# A reader is written as if it had the whole output: it yields the parts that it finds, and None
# where it needs more output to go on.
Reading = Generator[Part | None, None, T]
