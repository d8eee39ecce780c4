"""What stands before an answer: a role label, the prompt once more, its context, a courtesy."""

from __future__ import annotations

from collections.abc import Iterable

from validation.rules import SanitizerRule
from validation.sanitizer.edits import Edit
from validation.sanitizer.pattern import Pattern, any_of, literal
from validation.sanitizer.text_view import SENTENCE_ENDS, TextView

# An opening line or label is shorter than that.
_MAX_PREFIX_CHARS = 1_000
# It is compared with all that may stand before an answer.
_POSITIONS_PER_STEP = 4
# Fewer words than that may begin an answer by chance.
_MIN_ECHO_WORDS = 3
_RECORD_FIELD = r"\A[^\n]*\n(?:\*\*)?\p{Lu}[\pL ]{0,24}:(?:\*\*)?(?:\s|\z)"
_PYTHON_DECLARATION = (
    r"\A(?:[A-Z]\w+|int|str|float|bool|bytes|list|dict|tuple|set)(?:\.\w+)*"
    r"(?:\[[^\n]{0,200}\])?(?: \| [\w.]+)* = "
)
_OTHER_SPEAKERS = {"User", "Human", "You", "Customer", "Interviewer", "Client"}
_SENTENCE_ENDS = tuple(SENTENCE_ENDS + ":")
_QUESTION_MARKS = ("?", "\uff1f")


class PrefixRules:
    """Peels off the beginning, one after the other, what is not the answer.

    Nothing of it is taken if then nothing were left, but for a label: an answer that is nothing but
    courtesy is an answer.
    """

    def __init__(
        self,
        label: SanitizerRule | None,
        echo: SanitizerRule | None,
        context: SanitizerRule | None,
        boilerplate: SanitizerRule | None,
    ) -> None:
        self._label = Pattern(rf"\A(?:{_label_pattern(label)})+") if label else None
        # A record or a scene in a play begins with a label too, and has others after it; a name in
        # Python has its type there.
        self._record = Pattern(any_of([_RECORD_FIELD, _PYTHON_DECLARATION]))
        speakers = {word.strip("#*: ") for word in label.words} if label else set()
        names = any_of(map(literal, sorted(speakers | _OTHER_SPEAKERS)))
        self._speaker = Pattern(rf"\n[#*\s]*{names}(?:\*\*)?:")
        self._echo = echo is not None
        self._asked = Pattern(rf"\A{_any_of_rule(echo)}\s*") if echo else None
        self._context = Pattern(rf"\A{_any_of_rule(context)}\s*") if context else None
        openers = [
            pattern[1:]
            for pattern in (boilerplate.patterns if boilerplate else [])
            if pattern.startswith("^")
        ]
        self._opener = Pattern(rf"\A{any_of(openers)}") if openers else None
        saving = [literal(word) for word in (boilerplate.words if boilerplate else [])]
        self._saving = Pattern(rf"(?i)\b{any_of(saving)}\b") if saving else None

    def edits(self, page: TextView, prompt: str, system: str) -> list[Edit]:
        """Return what to take off the beginning, in pieces that follow each other."""
        found: list[Edit] = []
        at = page.skip_space(0)
        echoes = list(_find_echo_candidates(prompt, system)) if self._echo else []
        known: set[str] | None = None
        is_record: bool | None = None
        while at < page.end:
            page.budget.spend(_POSITIONS_PER_STEP)
            head = page.text[at : at + _MAX_PREFIX_CHARS]
            rule, size = "", 0
            if self._label and (size := self._label.head(head)):
                if is_record is None:
                    is_record = self._is_record(page, at + size)
                rule, size = ("role_label", size) if not is_record else ("", 0)
            if not size and (size := self._echo_size(page, at, head, echoes)):
                rule = "prompt_echo"
            if not size and self._context and self._context.head(head):
                if known is None:
                    known = _context_lines(prompt) | _context_lines(system)
                rule, size = "context_line", _context_size(page, at, self._context, known)
            if not size and self._opener and (size := self._opener.head(head)):
                rule, size = "boilerplate", size if not self._says(head[:size]) else 0
            if not size:
                break
            end = page.skip_lines(page.end_before(at + size))
            if end >= page.end and rule != "role_label":
                break
            found.append(Edit(found[-1].end if found else 0, end, "", rule))
            at = page.skip_space(end)
        return found

    def _is_record(self, page: TextView, at: int) -> bool:
        rest = TextView(page.text[at:])
        return self._record.found(rest) or self._speaker.found(rest)

    def _says(self, sentence: str) -> bool:
        return self._saving is not None and self._saving.found(TextView(sentence))

    def _echo_size(self, page: TextView, at: int, head: str, echoes: list[str]) -> int:
        labels = (0, self._asked.head(head)) if self._asked and echoes else (0,)
        for skip in sorted(set(labels)):
            for echo in echoes:
                end = at + skip + len(echo)
                if page.text.startswith(echo, at + skip) and _is_echo_end(page, echo, end):
                    return end - at
        return 0


def _any_of_rule(rule: SanitizerRule) -> str:
    """Return the expression for any of a rule's patterns and words."""
    return any_of([*rule.patterns, *map(literal, rule.words)])


def _label_pattern(rule: SanitizerRule) -> str:
    """Return the expression for a label and the white space behind it; a pattern brings its own."""
    words = any_of(map(literal, rule.words))
    return any_of([*(rf"(?:{pattern})\s*" for pattern in rule.patterns), rf"{words}(?:\s+|\z)"])


def _find_echo_candidates(prompt: str, system: str) -> Iterable[str]:
    """Yield what may be echoed: whole texts, and a question in the prompt's last line.

    Another last line may be what the answer has to begin with, as that of a poem to go on with.
    """
    whole = prompt.strip()
    last = whole.rpartition("\n")[2].strip()
    for text in (whole, last if last.endswith(_QUESTION_MARKS) else "", system.strip()):
        if len(text.split(None, _MIN_ECHO_WORDS)) >= _MIN_ECHO_WORDS:
            yield text


def _is_echo_end(page: TextView, echo: str, end: int) -> bool:
    """Tell whether an echo ends here, and the answer does not just begin with the same words."""
    following = page.text[end : end + 1]
    if not following or following == "\n":
        return True
    if echo.endswith(_SENTENCE_ENDS) and following.isspace():
        return True
    return "\n" in page.text[end : page.skip_space(end)]


def _context_lines(text: str) -> set[str]:
    """Return the lines of a text, and what they have behind a label."""
    lines = {line.strip() for line in text.split("\n")}
    lines |= {line.partition(":")[2].strip() for line in lines}
    return {line for line in lines if len(line.split(None, _MIN_ECHO_WORDS)) >= _MIN_ECHO_WORDS}


def _context_size(page: TextView, at: int, label: Pattern, known: set[str]) -> int:
    """Return the length of the lines, from a labelled one on, that were in the prompt."""
    text = page.text
    end, start = at, at
    while start < page.end:
        stop = text.find("\n", start)
        stop = len(text) if stop < 0 else stop
        line = text[start:stop].strip()
        bare = line[label.head(line[:_MAX_PREFIX_CHARS]) :].strip()
        is_known = line in known or (len(line) > len(bare) and (bare in known or not bare))
        if line and not is_known:
            break
        if line and bare:
            end = stop
        start = stop + 1
    return end - at
