"""The rules file: YAML that is validated when it is read, with errors that name file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

GENERAL = "general"
DEFAULT_RULES = Path(__file__).with_name("rules.yaml")
EXAMPLE_PROMPT = "Context: Paris is the capital of France.\nWhat is the capital of France?"

_Word = Annotated[str, Field(pattern=r"\S")]
# libyaml reads the rules in a tenth of a second, PyYAML's own parser needs seconds.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_Words = Annotated[list[_Word], Field(min_length=1)]


class RulesError(Exception):
    """A rules file cannot be used; the message names the file, the line and the problem."""


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Example(_Model):
    """An example of a rule: an answer that it catches, and a similar one that it leaves unchanged.

    Both answer the same prompt. `max_words` replaces the limit of the intent, because an answer
    over the real limit would be too long for an example.
    """

    catches: str
    leaves: str
    prompt: str = EXAMPLE_PROMPT
    system: str = ""
    intent: str = "general"
    finish_reason: Literal["stop", "length"] = "stop"
    max_words: int | None = None


class SanitizerRule(_Model):
    """One kind of text to remove from answers.

    The rule with this id defines the meaning of `words`, which are literal strings, and `patterns`,
    which are RE2 expressions and so match any text in linear time.
    """

    about: str
    words: list[str] = []
    patterns: list[str] = []
    examples: Annotated[list[Example], Field(min_length=1)]


class CheckRule(_Model):
    """A check that runs on every answer; `issue` is the sentence of its findings.

    A finding of `severity` error makes the answer invalid; a notice is only reported. `limits` are
    the numbers that the check with this id uses, `words` its phrases. The check is skipped if one
    of the phrases in `unless` is in the prompt. `retry` means that another answer is likely to be
    better; notices never cause a retry.
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
    """A cue for an intent: a prompt matches with a phrase of `any`, and of `near` if that is set.

    The `weight` is added to the score of the intent. It may be negative.
    """

    any: _Words
    near: list[str] = []
    weight: float


class Intent(_Model):
    """A subject of prompts, detected by cues, with the length limits of its answers in words.

    `topics` are words of which each answer has at least one.
    """

    about: str
    cues: list[Cue] = []
    min_words: int = Field(0, ge=0)
    max_words: int = Field(100_000, ge=1)
    topics: list[_Word] = []


class ShortPrompt(_Model):
    """The evidence that a short prompt needs, which the classifier alone only guesses about.

    In a prompt of less than `words` words, the cues of an intent must have a sum of `cues`.
    """

    words: int = Field(0, ge=0)
    cues: float = 0.0


class Place(_Model):
    """A place with its names and the currencies that fit an answer about pay there."""

    names: _Words
    currencies: _Words


class Rules(_Model):
    """The content of a rules file."""

    intents: dict[str, Intent]
    # The intent is `general` if no score is above this.
    threshold: float = 1.0
    # The weight of the classifier's log-odds in the score; 0 disables the classifier.
    classifier: float = Field(0.0, ge=0)
    short_prompt: ShortPrompt = ShortPrompt()
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
        RulesError: the file cannot be read, is not YAML, or has values that are not allowed.
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
    """Return a message that starts with a path in a rules file, with its file and line added."""
    root = yaml.compose(path.read_text(encoding="utf-8"), Loader=_LOADER)
    return f"{path}:{_find_line(root, tuple(message.partition(':')[0].split('.')))}: {message}"


def _find_line(node: Any, path: tuple[int | str, ...]) -> int:
    """Return the line of the deepest existing node on a path."""
    for part in path:
        child = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    child = value
                    # The line of the key is more useful than that of a block below it.
                    child.start_mark = key.start_mark
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            child = node.value[part] if part < len(node.value) else None
        if child is None:
            break
        node = child
    return int(node.start_mark.line) + 1 if node is not None else 1
