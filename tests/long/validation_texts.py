"""Validation: the cost of a verdict, by length of the answer and by hostility of its text.

All parts of validation run on one answer: redaction, sanitiser, all checks, a JSON Schema and the
language; and blocked terms are searched in a request of the same length. The texts are ordinary
prose and the most expensive ones of `NASTY`. Figures are CPU time, because validation runs on a
thread next to the event loop. If it is linear, a kilobyte costs the same at each length, except for
fixed costs, such as milliseconds for the language.
"""

from __future__ import annotations

import random
from time import thread_time

from benchmarks.measure import Table, max_budget
from benchmarks.options import Options, print_progress
from validation import Options as ValidationOptions
from validation import Subject
from validation.options.blocked import Blocklist
from validation.options.language import LanguageCheck
from validation.options.pii import PiiRedactor
from validation.options.schema import SchemaCheck
from validation.rules_validator import RulesValidator

NAME = "validation"
PROMPT = (
    "How much does a senior nurse earn in London after ten years, and is it going up this year?"
)
SYSTEM = (
    "You are a helpful assistant of a hospital. Never tell anyone which wards are short of staff."
)
SIZES = (1_000, 100_000, 1_000_000)
# Units that are repeated to make an answer; each was the worst case of some part of validation.
NASTY = {
    "one character": "a",
    "dotted letters": "a.",
    "letters that fold to several": "ẞİ",
    "card numbers": "4111 1111 1111 1112 ",
    "telephone numbers": "+1 (555) ",
    "beginnings of addresses": "a@",
    "marks on letters": "a\u0301",
    "Chinese": "職業",
    "emoji in sequences": "👩\u200d🚀",
    "tags": "<",
    "template tokens": "<|im_end|> ",
    "three words again and again": "one two three ",
    "table rows": "| a |\n",
    "backticks": "`",
    "open brackets": "[",
    "exclamation marks": "!!!!! ",
}
_WORDS = (
    "the of and to in is for that on with as are be this it by from at or an which more can has "
    "people work hospital nurse year city house water because however usually between different "
    "important example number system problem question answer several without"
).split()


def prose(size: int) -> str:
    """Return ordinary sentences with `size` characters, the same ones every time."""
    dice = random.Random(1)
    sentences: list[str] = []
    length = 0
    while length < size:
        words = dice.choices(_WORDS, k=dice.randint(5, 18))
        sentence = " ".join(words).capitalize() + (".\n\n" if dice.random() < 0.2 else ". ")
        sentences.append(sentence)
        length += len(sentence)
    return "".join(sentences)[:size]


def repeated(unit: str, size: int) -> str:
    """Return a text of `size` characters that repeats the unit."""
    return (unit * (size // len(unit) + 1))[:size]


class Everything:
    """All parts of validation on one answer."""

    def __init__(self) -> None:
        language = LanguageCheck("en")
        language.preload()
        schema = {"type": "object", "properties": {"city": {"type": "string"}}}
        self.validator = RulesValidator.from_file()
        self.redactor = PiiRedactor()
        self.options = ValidationOptions(
            checks={"json_schema": SchemaCheck(schema), "language": language},
            redactor=self.redactor,
            blockers=(Blocklist(["wire transfer", "walnut", "never mind"]),),
        )

    def seconds(self, text: str) -> float:
        """Return the CPU time."""
        started = thread_time()
        redacted, _ = self.redactor.redact(text)
        self.validator.validate(Subject(prompt=PROMPT, text=redacted, system=SYSTEM), self.options)
        self.validator.check_request(PROMPT, text, self.options)
        return thread_time() - started


def run(options: Options) -> list[Table]:
    """Measure prose and the worst text at each length, and the intent of a prompt."""
    table = Table(title=NAME, ours="everything in a row", peer="none")
    everything = Everything()
    rounds = max(options.pairs // 2, 1)
    _intent(table, everything.validator, options)
    for size in SIZES:
        print_progress(f"{NAME}: {size:,} characters")
        kilobytes = size / 1000
        plain = prose(size)
        times = [everything.seconds(plain) for _ in range(rounds)]
        table.add_single(
            f"prose, {size:,} characters", "µs/kB", [t / kilobytes * 1e6 for t in times]
        )
        worst, name = 0.0, ""
        for each, unit in NASTY.items():
            text = repeated(unit, size)
            best = min(everything.seconds(text) for _ in range(2))
            if best > worst:
                worst, name = best, each
        text = repeated(NASTY[name], size)
        times = [everything.seconds(text) for _ in range(rounds)]
        row = f"the worst of {len(NASTY)} texts ({name}), {size:,} characters"
        table.add_single(row, "µs/kB", [t / kilobytes * 1e6 for t in times])
        if size == SIZES[-1]:
            table.add_single(f"{name}, {size:,} characters", "s", times, max_budget(1.0))
    return [table]


def _intent(table: Table, validator: RulesValidator, options: Options) -> None:
    asks = options.size(200, 50)
    results = []
    for _ in range(options.pairs):
        started = thread_time()
        for _ in range(asks):
            validator.detect_intent(PROMPT)
        results.append((thread_time() - started) / asks * 1e3)
    table.add_single("intent of a prompt of 18 words", "ms", results, max_budget(1.0))
