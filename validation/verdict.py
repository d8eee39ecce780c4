"""The seam that the pipeline hands requests and finished answers through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from validation.findings import Issue, Removal, Subject


class AnswerCheck(Protocol):
    """One optional look at an answer: its schema, its language."""

    def find_issues(self, text: str) -> tuple[Issue, ...]:
        """Return what is wrong with the answer, in linear time."""


class Redactor(Protocol):
    """Takes out of a text what must not be in it."""

    def redact(self, text: str) -> tuple[str, tuple[Removal, ...]]:
        """Return the text without it, and what stood where, in order."""


class Blocker(Protocol):
    """Decides what is not answered at all."""

    def find_block(self, text: str, intent: str) -> Issue | None:
        """Return why a request of an intent, with this text, must not be answered, if so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is looked at beyond the rules, as a request and the settings ask for it.

    `regenerate` allows one more try where a verdict asks for it.
    """

    checks: Mapping[str, AnswerCheck] = field(default_factory=dict)
    redactor: Redactor | None = None
    blockers: tuple[Blocker, ...] = ()
    regenerate: bool = False


NO_OPTIONS = Options()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of validating one answer.

    `text` is the answer after sanitising, `removals` what the sanitiser took out, with spans in the
    model's own text. `issues` make the answer invalid, `notices` do not. An invalid answer is
    reported, never withheld; `retry` says that another answer may well be better.
    """

    text: str
    intent: str
    issues: tuple[Issue, ...] = ()
    notices: tuple[Issue, ...] = ()
    removals: tuple[Removal, ...] = ()
    retry: bool = False

    @property
    def valid(self) -> bool:
        """Whether there are no issues (R47); notices do not count (R60)."""
        return not self.issues


class Validator(Protocol):
    """Judges requests before and answers after; any thread may call it, in time linear in text."""

    def check_request(self, prompt: str, conversation: str, options: Options) -> Verdict | None:
        """Return the verdict on a request that must not be answered, None for all others.

        `prompt` is what its intent is told by, `conversation` all that the user has said.
        """

    def validate(self, subject: Subject, options: Options) -> Verdict:
        """Return the verdict on a finished answer; never raises on any text."""
