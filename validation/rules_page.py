"""`python -m validation.rules_page`: docs/validation.md, made from the rules themselves."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from validation.rules import (
    EXAMPLE_PROMPT,
    CheckRule,
    Example,
    Rules,
    SanitizerRule,
    load_rules,
)

_VERDICT = """\
# Validation

What is made of a finished answer: the intent of its prompt is told, the sanitiser takes out what
nobody should see, checks look at what is left. The output has it under `validation` wherever
`enable_validation` is on, which it is by default.

| key | holds |
|---|---|
| `intent` | what the prompt wants to know, [one of these](#intents) |
| `sanitized` | true if the answer's text is not what the model wrote, which with `stream` is the \
joined `deltas` |
| `valid` | true if there are no issues |
| `issues` | a sentence for each issue: none if `valid` is true, else at least one |
| `details` | `issues` once more, each with the id of its `rule`; `notices`, in the same form: \
what is worth knowing and leaves the answer valid; `removed`, what the sanitiser \
took out, each with its `rule` and its `span`, in characters of what the model wrote; \
`removed_count` |

An answer that is not valid is reported, never withheld. That something was taken out is no issue by
itself: the answer may be fine without it."""

_FILE = """\
## The rules file

All rules are data, in [rules.yaml](../validation/rules.yaml), and `make docs` makes this page from
it. `VALIDATION_RULES=/path/to/mine.yaml` replaces the whole file: copy it and change the copy. A
rule that is not in the copy is off. A bad file ends the process at its start with a line that names
the file, the line in it and what is wrong there."""

_EXAMPLES = """\
Every rule has examples, and the tests run all of them. Texts are shown as they are; where that
would hide something (white space at an end, a tab, no text at all), between quotation marks and
with `\\n` for a line break. They answer this prompt where none is shown:"""

_INTENTS = """\
## Intents

What a prompt may want to know, and how many words an answer has. Cues in the rules file speak for
an intent or against it, each with a weight: words and phrases, some only beside others, for a cue
alone is not an intent: their sum must be above `threshold`. A small encoder, trained on this
project's prompts, speaks as well: its log-odds against `general`, times `classifier`, are added to
the cues of the intents that it knows; an intent of your own has its cues alone. The intent with the
highest sum is told, `general` if none is above the threshold."""

_SANITIZER = """\
## Sanitiser

What it takes out of an answer. Code, between fences or backticks or indented, is left alone, but
for a token that ends the answer in the midst of it. What comes out would not change any further."""

_CHECKS = """\
## Checks

What is checked in an answer, and the sentence that reports a finding. Checks see the answer as the
sanitiser leaves it. A finding is an issue and makes the answer invalid, unless its rule has
`severity: notice`: a notice is listed under `details.notices` and leaves `valid` true. A check that
is not sure finds nothing, nor does one where the prompt asks for what it would find (`unless`): a
good answer called invalid is worse than a bad one missed."""


_OPTIONS = """\
## Options

What a request asks for with its `validation`, or the settings for all of them, see
[Jobs](jobs.md#input). The first three make an answer invalid. What is personal or secret is taken
out of the answer and its deltas alike, with its kind in brackets left in its place; a stream then
comes at its end, for only a whole text tells what half a number was. What is blocked is answered at
once, without a text, `finish_reason` `content_filter`.

A package that one of them needs and that is not installed leaves a sentence in `warnings`, and all
else goes on. With `regenerate` an answer is generated once more where one of its issues may go away
with that; of the two the one with fewer issues is given."""

OPTION_EXAMPLES = Path(__file__).with_name("options") / "examples.yaml"


class OptionRule(BaseModel):
    """What an option finds, for people: `given` is the request's `validation` in its examples."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    about: str
    given: dict[str, Any]
    examples: list[Example]


def option_rules() -> dict[str, OptionRule]:
    """Return the rules of the options with their examples, in the order of the page."""
    raw = yaml.safe_load(OPTION_EXAMPLES.read_text(encoding="utf-8"))
    return {name: OptionRule.model_validate(rule) for name, rule in raw.items()}


def page(rules: Rules) -> str:
    """Return the whole page; a section is a function, so that others are easily added."""
    sections = (_verdict, _rules_file, _intents, _sanitizer, _checks, _options)
    return "\n\n".join(part for section in sections for part in section(rules)) + "\n"


def _verdict(rules: Rules) -> Iterable[str]:
    yield _VERDICT


def _rules_file(rules: Rules) -> Iterable[str]:
    yield _FILE
    yield _EXAMPLES
    yield _shown(EXAMPLE_PROMPT)


def _intents(rules: Rules) -> Iterable[str]:
    yield _INTENTS
    rows = ["| intent | about | words |", "|---|---|---|"]
    for name, intent in rules.intents.items():
        length = f"{intent.min_words:,} to {intent.max_words:,}"
        rows.append(f"| `{name}` | {_prose(intent.about)} | {length} |")
    yield "\n".join(rows)


def _sanitizer(rules: Rules) -> Iterable[str]:
    yield _SANITIZER
    for name, rule in rules.sanitizer.items():
        yield from _rule(name, rule)


def _checks(rules: Rules) -> Iterable[str]:
    yield _CHECKS
    for name, rule in rules.checks.items():
        yield from _rule(name, rule)


def _options(rules: Rules) -> Iterable[str]:
    yield _OPTIONS
    for name, rule in option_rules().items():
        yield f"### `{name}`"
        yield _prose(rule.about)
        yield f"```json\n{json.dumps(rule.given, ensure_ascii=False)}\n```"
        for example in rule.examples:
            yield from _example(example)


def _rule(name: str, rule: SanitizerRule | CheckRule) -> Iterable[str]:
    yield f"### `{name}`"
    yield _prose(rule.about)
    if isinstance(rule, CheckRule):
        limits = ", ".join(f"`{key}` is {value:g}" for key, value in rule.limits.items())
        severity = "" if rule.severity == "error" else f" Severity: {rule.severity}."
        yield f"“{_prose(rule.issue)}”{severity}" + (f" Here {limits}." if limits else "")
    for example in rule.examples:
        yield from _example(example)


def _example(example: Example) -> Iterable[str]:
    given = example.model_fields_set
    fields = [field for field in ("intent", "finish_reason", "max_words") if field in given]
    if fields:
        case = ", ".join(f"`{field}` is {getattr(example, field)}" for field in fields)
        yield f"Where {case}:"
    for field in ("system", "prompt"):
        if field in given:
            yield f"{field.capitalize()}:"
            yield _shown(getattr(example, field))
    yield "Catches:"
    yield _shown(example.catches)
    yield "Leaves:"
    yield _shown(example.leaves)


def _prose(text: str) -> str:
    """Return text as Markdown that shows it; names between backticks are code there too."""
    return re.sub(r"(`[^`]+`)|([\\`*_<>\[\]|#~$&])", _kept_or_escaped, text.strip())


def _kept_or_escaped(found: re.Match[str]) -> str:
    code, sign = found.groups()
    return code or f"\\{sign}"


def _shown(text: str) -> str:
    """Return a text in a fence that nothing in it can close."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text if _is_plain(text) else repr(text)}\n{fence}"


def _is_plain(text: str) -> bool:
    """Whether one sees all of a text, and cannot take it for one between quotation marks."""
    lines = text.split("\n")
    if not lines[0] or not lines[-1] or text[0].isspace() or text[0] in "'\"":
        return False
    return all(line.isprintable() and line == line.rstrip() for line in lines)


if __name__ == "__main__":
    sys.stdout.write(page(load_rules()))
