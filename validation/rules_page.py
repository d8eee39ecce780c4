"""`python -m validation.rules_page`: docs/validation.md, made from the rules themselves."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

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
| `valid` | true if nothing is wrong |
| `issues` | a sentence for each thing that is wrong: none if `valid` is true, else at least one |
| `details` | `issues` once more, each with the id of its `rule`; `removed`, what the sanitiser \
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

What a prompt may want to know, and how many words an answer has."""

_SANITIZER = """\
## Sanitiser

What it takes out of an answer. Code, between fences or backticks or indented, is left alone, but
for a token that ends the answer in the midst of it. What comes out would not change any further."""

_CHECKS = """\
## Checks

What makes an answer invalid, and the sentence that says so. They look at the answer as the
sanitiser leaves it. A check that is not sure finds nothing, nor does one where the prompt asks for
what it would find (`unless`): a good answer called invalid is worse than a bad one missed."""


def page(rules: Rules) -> str:
    """Return the whole page; a section is a function, so that others are easily added."""
    sections = (_verdict, _rules_file, _intents, _sanitizer, _checks)
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


def _rule(name: str, rule: SanitizerRule | CheckRule) -> Iterable[str]:
    yield f"### `{name}`"
    yield _prose(rule.about)
    if isinstance(rule, CheckRule):
        limits = ", ".join(f"`{key}` is {value:g}" for key, value in rule.limits.items())
        yield f"“{_prose(rule.issue)}”" + (f" Here {limits}." if limits else "")
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
