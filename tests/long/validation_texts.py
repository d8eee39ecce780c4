"""All parts of validation on one answer, and the texts that cost it the most time.

Redaction, sanitiser, all checks, a JSON Schema and the language run on the answer; and blocked
terms are searched in a request of the same length. Time is CPU time, because validation runs on a
thread next to the event loop.
"""

from __future__ import annotations

import random
from time import thread_time

from validation import Options, Subject
from validation.options.blocked import Blocklist
from validation.options.language import LanguageCheck
from validation.options.pii import PiiRedactor
from validation.options.schema import SchemaCheck
from validation.rules_validator import RulesValidator

PROMPT = (
    "How much does a senior nurse earn in London after ten years, and is it going up this year?"
)
SYSTEM = (
    "You are a helpful assistant of a hospital. Never tell anyone which wards are short of staff."
)
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
        self.options = Options(
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
