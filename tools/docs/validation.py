"""`python -m tools.docs.validation`: docs/validation.md, generated from the rules."""

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

Validation checks each finished answer: it detects the intent of the prompt, the sanitiser removes
unwanted text, and checks look for issues in the remaining text. The result is in the output under
`validation` if `enable_validation` is on, which is the default. The model's reasoning and its tool
calls are not part of the answer: a model that only thinks has given an empty answer.

| key | value |
|---|---|
| `intent` | the subject of the prompt, [one of these](#intents) |
| `sanitized` | true if the answer's text differs from the model's, which with `stream` is in the \
joined `deltas`, after the reasoning |
| `valid` | true if there are no issues |
| `issues` | a sentence for each issue: none if `valid` is true, else at least one |
| `details` | `issues` again, each with the id of its `rule`; `notices` in the same form, which \
leave the answer valid; `removed`, the texts that the sanitiser removed, each with its `rule` and \
its `span`, in characters of the model's output; `removed_count` |

An invalid answer is reported but never withheld. Removed text is not an issue by itself: the
remaining answer may be fine."""

_FILE = """\
## The rules file

All rules are data, in [rules.yaml](../validation/rules.yaml), and `make docs` generates this page
from them. `VALIDATION_RULES=/path/to/mine.yaml` replaces the whole file: copy it and change the
copy. A rule that is not in the copy is disabled. `words`, `patterns`, `unless` and the limits, as
the descriptions of rules name them, are keys of the rule in this file. With an invalid file the
process exits at startup with an error message that names the file, the line and the problem."""

_EXAMPLES = """\
Every rule has examples, and the tests run all of them. Texts are shown as they are. A text in
which something would be invisible (white space at an end, a tab, an empty text) is shown between
quotation marks and with `\\n` for a line break. Unless an example shows a prompt, its prompt is:"""

_INTENTS = """\
## Intents

The intent is the subject of a prompt, and determines how many words an answer may have. The rules
file has weighted cues for and against each intent: words and phrases, some of which count only
together with others. The sum of an intent's matching cues must be above `threshold`, a key of the
rules file, so usually more than one cue must match. A small encoder model, trained on this
project's prompts, also contributes: its log-odds against `general`, multiplied by `classifier`
(also a key of the rules file), are added to the sums of the intents that it was trained on. An
intent that you add uses only its cues. In a short prompt (`short_prompt` in the rules file: less
than five words), an intent also needs cues of its own, so that "This is a test" is `general`, and
`BLOCKED_INTENTS` does not refuse it on a guess. The intent with the highest sum is chosen, or
`general` if no sum is above the threshold."""

_SANITIZER = """\
## Sanitiser

The sanitiser removes these texts from an answer. Code (fenced, between backticks or indented) is
left unchanged, except for a token that ends the answer inside code. Sanitising the result again
changes nothing."""

_CHECKS = """\
## Checks

Each check has the sentence that reports its finding. Checks run on the sanitised answer. A
finding is an issue and makes the answer invalid, unless its rule has `severity: notice`: a notice
is listed under `details.notices` and leaves `valid` true. A check reports nothing if it is
uncertain, or if the prompt asks for what the check would find (`unless`): a false alarm on a good
answer is worse than a missed bad answer."""


_OPTIONS = """\
## Options

Options are enabled for one request by its `validation` object, or for all requests by settings;
see [Jobs](jobs.md#input). The first three make an answer invalid. Personal data and secrets are
replaced, in the answer and in its deltas, by their kind in brackets. A stream is then sent only
at its end, because a partial number cannot be recognised before the text is complete. A blocked
request is answered immediately, without text and with `finish_reason` `content_filter`.

If a package that an option needs is not installed, the option is skipped with a sentence in
`warnings`. With `regenerate`, an answer is generated a second time if one of its issues may not
occur again, and the answer with fewer issues is returned."""

OPTION_EXAMPLES = Path(__file__).parents[2] / "validation" / "options" / "examples.yaml"


class OptionRule(BaseModel):
    """The description of an option; `validation` is that field of the request in its examples."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    about: str
    validation: dict[str, Any]
    examples: list[Example]


def option_rules() -> dict[str, OptionRule]:
    """Return the rules of the options with their examples, in the order of the page."""
    raw = yaml.safe_load(OPTION_EXAMPLES.read_text(encoding="utf-8"))
    return {name: OptionRule.model_validate(rule) for name, rule in raw.items()}


def page(rules: Rules) -> str:
    """Return the whole page. Each section is a function."""
    sections = (_verdict, _rules_file, _intents, _sanitizer, _checks, _options)
    return "\n\n".join(part for section in sections for part in section(rules)) + "\n"


def _verdict(rules: Rules) -> Iterable[str]:
    yield _VERDICT


def _rules_file(rules: Rules) -> Iterable[str]:
    yield _FILE
    yield _EXAMPLES
    yield _code_block(EXAMPLE_PROMPT)


def _intents(rules: Rules) -> Iterable[str]:
    yield _INTENTS
    rows = ["| intent | about | words |", "|---|---|---|"]
    for name, intent in rules.intents.items():
        length = f"{intent.min_words:,} to {intent.max_words:,}"
        rows.append(f"| `{name}` | {_escape_markdown(intent.about)} | {length} |")
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
        yield _escape_markdown(rule.about)
        yield f"```json\n{json.dumps(rule.validation, ensure_ascii=False)}\n```"
        for example in rule.examples:
            yield from _example(example)


def _rule(name: str, rule: SanitizerRule | CheckRule) -> Iterable[str]:
    yield f"### `{name}`"
    yield _escape_markdown(rule.about)
    if isinstance(rule, CheckRule):
        limits = ", ".join(f"`{key}` is {value:g}" for key, value in rule.limits.items())
        severity = "" if rule.severity == "error" else f" Severity: {rule.severity}."
        yield f"“{_escape_markdown(rule.issue)}”{severity}" + (
            f" Limits: {limits}." if limits else ""
        )
    for example in rule.examples:
        yield from _example(example)


def _example(example: Example) -> Iterable[str]:
    set_fields = example.model_fields_set
    fields = [name for name in ("intent", "finish_reason", "max_words") if name in set_fields]
    if fields:
        conditions = ", ".join(f"`{name}` is {getattr(example, name)}" for name in fields)
        yield f"With {conditions}:"
    for name in ("system", "prompt"):
        if name in set_fields:
            yield f"{name.capitalize()}:"
            yield _code_block(getattr(example, name))
    yield "Matches:"
    yield _code_block(example.catches)
    yield "Does not match:"
    yield _code_block(example.leaves)


def _escape_markdown(text: str) -> str:
    """Return text escaped as Markdown; names between backticks stay code."""
    return re.sub(r"(`[^`]+`)|([\\`*_<>\[\]|#~$&])", _escape_unless_code, text.strip())


def _escape_unless_code(match: re.Match[str]) -> str:
    code, sign = match.groups()
    return code or f"\\{sign}"


def _code_block(text: str) -> str:
    """Return a text in a code fence longer than any run of backticks in it."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text if _is_plain(text) else repr(text)}\n{fence}"


def _is_plain(text: str) -> bool:
    """Whether all of a text is visible, and it does not look like a quoted text."""
    lines = text.split("\n")
    if not lines[0] or not lines[-1] or text[0].isspace() or text[0] in "'\"":
        return False
    return all(line.isprintable() and line == line.rstrip() for line in lines)


if __name__ == "__main__":
    sys.stdout.write(page(load_rules()))
