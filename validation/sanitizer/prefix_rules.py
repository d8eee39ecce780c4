"""Removal of text before an answer: role labels, echoes of the prompt, boilerplate."""

from __future__ import annotations

from collections.abc import Iterable

from validation.rules import SanitizerRule
from validation.sanitizer.edits import Edit
from validation.sanitizer.pattern import Pattern, any_of, literal
from validation.sanitizer.text_view import SENTENCE_ENDS, TextView

# An opening line or label is shorter than this.
_MAX_PREFIX_CHARS = 1_000
# Each step compares the text with every kind of prefix.
_POSITIONS_PER_STEP = 4
# An answer may start with fewer words of the prompt by chance.
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
    """Removes prefixes that are not part of the answer, one after the other.

    Except for a label, a prefix is kept if nothing would remain: boilerplate alone is an answer.
    """

    def __init__(
        self,
        label: SanitizerRule | None,
        echo: SanitizerRule | None,
        context: SanitizerRule | None,
        boilerplate: SanitizerRule | None,
    ) -> None:
        self._label = Pattern(rf"\A(?:{_label_pattern(label)})+") if label else None
        # A record or a dialogue also starts with a label, followed by others; in Python, a type
        # annotation looks like one.
        self._record = Pattern(any_of([_RECORD_FIELD, _PYTHON_DECLARATION]))
        speakers = {word.strip("#*: ") for word in label.words} if label else set()
        names = any_of(map(literal, sorted(speakers | _OTHER_SPEAKERS)))
        self._speaker = Pattern(rf"\n[#*\s]*{names}(?:\*\*)?:")
        self._echo = echo is not None
        self._echo_label = Pattern(rf"\A{_any_of_rule(echo)}\s*") if echo else None
        self._context = Pattern(rf"\A{_any_of_rule(context)}\s*") if context else None
        opening_patterns = [
            pattern[1:]
            for pattern in (boilerplate.patterns if boilerplate else [])
            if pattern.startswith("^")
        ]
        self._opening = Pattern(rf"\A{any_of(opening_patterns)}") if opening_patterns else None
        content_words = [literal(word) for word in (boilerplate.words if boilerplate else [])]
        self._content_words = (
            Pattern(rf"(?i)\b{any_of(content_words)}\b") if content_words else None
        )

    def find_edits(self, view: TextView, prompt: str, system: str) -> list[Edit]:
        """Return the edits that remove prefixes; they are adjacent."""
        edits: list[Edit] = []
        start = view.skip_space(0)
        echoes = list(_find_echo_candidates(prompt, system)) if self._echo else []
        prompt_lines: set[str] | None = None
        is_record: bool | None = None
        while start < view.end:
            view.budget.spend(_POSITIONS_PER_STEP)
            head = view.text[start : start + _MAX_PREFIX_CHARS]
            rule, size = "", 0
            if self._label and (size := self._label.match_length(head)):
                if is_record is None:
                    is_record = self._is_record(view, start + size)
                rule, size = ("role_label", size) if not is_record else ("", 0)
            if not size and (size := self._echo_size(view, start, head, echoes)):
                rule = "prompt_echo"
            if not size and self._context and self._context.match_length(head):
                if prompt_lines is None:
                    prompt_lines = _context_lines(prompt) | _context_lines(system)
                rule, size = "context_line", _context_size(view, start, self._context, prompt_lines)
            if not size and self._opening and (size := self._opening.match_length(head)):
                rule, size = "boilerplate", size if not self._has_content(head[:size]) else 0
            if not size:
                break
            end = view.skip_lines(view.end_before(start + size))
            if end >= view.end and rule != "role_label":
                break
            edits.append(Edit(edits[-1].end if edits else 0, end, "", rule))
            start = view.skip_space(end)
        return edits

    def _is_record(self, view: TextView, start: int) -> bool:
        rest = TextView(view.text[start:])
        return self._record.matches(rest) or self._speaker.matches(rest)

    def _has_content(self, sentence: str) -> bool:
        return self._content_words is not None and self._content_words.matches(TextView(sentence))

    def _echo_size(self, view: TextView, start: int, head: str, echoes: list[str]) -> int:
        labels = (0, self._echo_label.match_length(head)) if self._echo_label and echoes else (0,)
        for skip in sorted(set(labels)):
            for echo in echoes:
                end = start + skip + len(echo)
                if view.text.startswith(echo, start + skip) and _is_echo_end(view, echo, end):
                    return end - start
        return 0


def _any_of_rule(rule: SanitizerRule) -> str:
    """Return an expression for any of a rule's patterns and words."""
    return any_of([*rule.patterns, *map(literal, rule.words)])


def _label_pattern(rule: SanitizerRule) -> str:
    """Return an expression for a label and the white space after it."""
    words = any_of(map(literal, rule.words))
    return any_of([*(rf"(?:{pattern})\s*" for pattern in rule.patterns), rf"{words}(?:\s+|\z)"])


def _find_echo_candidates(prompt: str, system: str) -> Iterable[str]:
    """Yield the texts that an answer may echo: both prompts, and a question on the last line.

    A last line that is not a question may be text to continue, such as a line of a poem.
    """
    stripped_prompt = prompt.strip()
    last = stripped_prompt.rpartition("\n")[2].strip()
    for text in (stripped_prompt, last if last.endswith(_QUESTION_MARKS) else "", system.strip()):
        if len(text.split(None, _MIN_ECHO_WORDS)) >= _MIN_ECHO_WORDS:
            yield text


def _is_echo_end(view: TextView, echo: str, end: int) -> bool:
    """Return whether the echo ends here. Otherwise the answer only starts with the same words."""
    following = view.text[end : end + 1]
    if not following or following == "\n":
        return True
    if echo.endswith(_SENTENCE_ENDS) and following.isspace():
        return True
    return "\n" in view.text[end : view.skip_space(end)]


def _context_lines(text: str) -> set[str]:
    """Return the lines of a text, with and without labels before them."""
    lines = {line.strip() for line in text.split("\n")}
    lines |= {line.partition(":")[2].strip() for line in lines}
    return {line for line in lines if len(line.split(None, _MIN_ECHO_WORDS)) >= _MIN_ECHO_WORDS}


def _context_size(view: TextView, first: int, label: Pattern, prompt_lines: set[str]) -> int:
    """Return the length of the lines from the prompt, starting with a labelled line."""
    text = view.text
    end = start = first
    while start < view.end:
        stop = text.find("\n", start)
        stop = len(text) if stop < 0 else stop
        line = text[start:stop].strip()
        bare = line[label.match_length(line[:_MAX_PREFIX_CHARS]) :].strip()
        has_label = len(line) > len(bare)
        is_from_prompt = line in prompt_lines or (has_label and (bare in prompt_lines or not bare))
        if line and not is_from_prompt:
            break
        if line and bare:
            end = stop
        start = stop + 1
    return end - first
