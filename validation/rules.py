"""The rules as data: one YAML file, checked when it is read, errors naming file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

GENERAL = "general"
DEFAULT_RULES = Path(__file__).with_name("rules.yaml")
EXAMPLE_PROMPT = "Context: Paris is the capital of France.\nWhat is the capital of France?"

_Word = Annotated[str, Field(pattern=r"\S")]
# PyYAML's own parser takes seconds for what libyaml reads in a tenth of one.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_Words = Annotated[list[_Word], Field(min_length=1)]


class RulesError(Exception):
    """A rules file cannot be used; the message names the file, the line and what is wrong."""


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Example(_Model):
    """What shows a rule at work: something it catches, something like it that it leaves alone.

    Both answer the same prompt. What most examples do not care about has a default, and `max_words`
    stands in for the intent's: what it bounds is too long to read.
    """

    catches: str
    leaves: str
    prompt: str = EXAMPLE_PROMPT
    system: str = ""
    intent: str = "general"
    finish_reason: Literal["stop", "length"] = "stop"
    max_words: int | None = None


class SanitizerRule(_Model):
    """One kind of thing that is taken out of an answer.

    `words` and `patterns` mean what the rule of that id makes of them: literal strings, or RE2
    expressions, which match in linear time whatever they are given.
    """

    about: str
    words: list[str] = []
    patterns: list[str] = []
    examples: Annotated[list[Example], Field(min_length=1)]


class CheckRule(_Model):
    """A check that runs on every answer; `issue` is the sentence that a finding is reported with.

    A finding of `severity` error makes the answer invalid; a notice is only reported. `limits` are
    the numbers that the check with this id works with, `words` its phrases. The check finds nothing
    when one of the phrases in `unless` is in the prompt. `retry` says that another answer to the
    same prompt may well be better; notices never cause a retry.
    """

    about: str
    issue: str
    severity: Literal["error", "notice"] = "error"
    limits: dict[str, float] = {}
    words: list[_Word] = []
    unless: list[_Word] = []
    retry: bool = False
    examples: Annotated[list[Example], Field(min_length=1)]


class Cue(_Model):
    """Words that speak for an intent: `any` of them, and where given any of `near` as well.

    A cue alone is not an intent: its `weight` adds up with the others', and may be negative.
    """

    any: _Words
    near: list[str] = []
    weight: float


class Intent(_Model):
    """What a prompt may want to know, told by cues; `words` bounds an answer's length in words.

    `topics` are words of which an answer to it has at least one.
    """

    about: str
    cues: list[Cue] = []
    min_words: int = Field(0, ge=0)
    max_words: int = Field(100_000, ge=1)
    topics: list[_Word] = []


class Place(_Model):
    """Where money is asked about: how it is named and which currencies fit."""

    names: _Words
    currencies: _Words


class Rules(_Model):
    """A whole rules file."""

    intents: dict[str, Intent]
    # Below it, no intent is told and the prompt is `general`.
    threshold: float = 1.0
    # What the trained classifier's log-odds count for beside the cues; 0 is nothing.
    classifier: float = Field(0.0, ge=0)
    sanitizer: dict[str, SanitizerRule]
    checks: dict[str, CheckRule]
    currencies: dict[_Word, list[_Word]] = {}
    places: list[Place] = []

    @field_validator("intents")
    @classmethod
    def _has_general(cls, intents: dict[str, Intent]) -> dict[str, Intent]:
        if GENERAL not in intents:
            raise ValueError(f"there must be {GENERAL}, for prompts that are about none of them")
        return intents


def load_rules(path: Path = DEFAULT_RULES) -> Rules:
    """Return the rules in a file.

    Raises:
        RulesError: it cannot be read, is no YAML, or has something in it that is not allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RulesError(f"VALIDATION_RULES: {path} cannot be read: {error}") from None
    try:
        raw = yaml.load(text, Loader=_LOADER)  # noqa: S506 - it is one of the safe ones
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise RulesError(f"{path}:{line}: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise RulesError(f"{path}:{line}: {error.reason}") from None
    try:
        return Rules.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        line = _find_line(yaml.compose(text, Loader=_LOADER), first["loc"])
        raise RulesError(
            f"{path}:{line}: {where or 'the file'}: {first['msg']}, got {first['input']!r:.60}"
        ) from None


def add_location(path: Path, message: str) -> str:
    """Return a message about a place in a rules file ("checks.empty: …") with file and line."""
    root = yaml.compose(path.read_text(encoding="utf-8"), Loader=_LOADER)
    return f"{path}:{_find_line(root, tuple(message.partition(':')[0].split('.')))}: {message}"


def _find_line(node: Any, path: tuple[int | str, ...]) -> int:
    """Return the line of the deepest node on a path that exists."""
    for part in path:
        below = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    below = value
                    # The key's line tells more than that of a block which starts below it.
                    below.start_mark = key.start_mark
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            below = node.value[part] if part < len(node.value) else None
        if below is None:
            break
        node = below
    return int(node.start_mark.line) + 1 if node is not None else 1
