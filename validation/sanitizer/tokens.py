"""Tokens of chat templates, which a model should emit as ids and at times spells out."""

from __future__ import annotations

from validation.rules import SanitizerRule
from validation.sanitizer.edits import Edit
from validation.sanitizer.pattern import NOTHING, Pattern, any_of, literal
from validation.sanitizer.text_view import SENTENCE_ENDS, TextView

_QUOTES = {('"', '"'), ("'", "'"), ("“", "”"), ("\u2018", "\u2019"), ("«", "»"), ("„", "“")}
# How far back in its line the tag is looked for that `</s>` closes if it is no token.
_TAG_SEARCH_CHARS = 400
# A word on both sides of it that names what it is.
_TOPIC_WORDS = (
    r"(?i)\b(?:tokens?|tokeni[sz]ers?|templates?|ChatML|separators?|delimiters?|markers?)\b"
)
_CONTEXT_CHARS = 80
_AFTER_WORD = (" ", ",", ".", ";", ":", ")")


class TokenRules:
    """Two rules at once, for their tokens stand side by side.

    `template_token` has what cannot be anything else: taken out wherever it stands. `edge_token`
    has what also is a placeholder in a manual or a tag in HTML: only at either end of the text,
    beside another token, or right behind the end of a sentence.
    """

    def __init__(self, template: SanitizerRule | None, edge: SanitizerRule | None) -> None:
        strong, weak = _token_pattern(template), _token_pattern(edge)
        both = any_of([strong, weak])
        self._strong = Pattern(strong)
        self._runs = Pattern(rf"(?:{both}\s*)*{strong}(?:\s*{both})*") if template else None
        closing = any_of(literal(word) for word in edge.words if word[:2] == "</") if edge else ""
        edges = (
            # Before a word in small letters it is what the sentence is about.
            rf"\A\s*({weak})(?:\S|\s+[^\p{{Ll}}\s]|\s*\z)",
            rf"(?:\A\s*|\S|\pP\s+|\n\s*)({weak})\s*\z",
            rf"({closing})\s*\z",
            rf"({weak}(?:\s*{weak})+)",
            rf"\pL[{SENTENCE_ENDS}]({weak})",
        )
        self._edges = [Pattern(source) for source in edges] if edge else []
        self._about = Pattern(_TOPIC_WORDS)

    def edits(self, page: TextView, apart: bool) -> list[Edit]:
        """Return what to take out; `apart` leaves a space where words would be put together."""
        cores: list[tuple[int, int, str]] = []
        if self._runs:
            cores += ((*span, "template_token") for span in self._runs.spans(page))
        for pattern in self._edges:
            cores += ((*span, "edge_token") for span in pattern.spans(page, 1))
        # The longest of those that begin together: it is what the others are and more.
        cores.sort(key=lambda core: (core[0], -core[1]))
        found: list[Edit] = []
        reached = 0
        for start, end, rule in cores:
            if start < reached:
                continue
            reached = end
            if not self._is_meant(page, start, end, rule):
                found.append(
                    _create_edit(page, found[-1].end if found else 0, start, end, rule, apart)
                )
                reached = found[-1].end
        return found

    def _is_meant(self, page: TextView, start: int, end: int, rule: str) -> bool:
        """Tell whether it is there on purpose: quoted, as a tag, in talk about tokens, in code."""
        text = page.text
        if start and (text[start - 1], text[end : end + 1]) in _QUOTES:
            return True
        if rule == "edge_token" and _is_html_tag(page, start, end):
            return True
        if self._is_named(text, start, end):
            return True
        if page.code.around(start, end) is None:
            return False
        # A model that ends its answer in the middle of code does so with a token; one that writes
        # about tokens has shown others in its code before.
        return end < page.end or any(
            page.code.around(*span)
            for span in self._strong.spans(TextView(text[:start], page.budget))
        )

    def _is_named(self, text: str, start: int, end: int) -> bool:
        """Tell whether a single token stands like a word in a line that talks about tokens."""
        if text[max(0, start - 1) : start] not in ("", "\n", " ", "("):
            return False
        if text[end : end + 1] not in _AFTER_WORD or text[end - 1] not in ">]":
            return False
        before = text[max(0, start - _CONTEXT_CHARS) : start].rpartition("\n")[2]
        behind = text[end : end + _CONTEXT_CHARS].partition("\n")[0]
        return bool(behind.strip()) and self._about.found(TextView(f"{before} {behind}"))


def _token_pattern(rule: SanitizerRule | None) -> str:
    if rule is None:
        return NOTHING
    # Patterns first: a whole header is more than the token that it begins with.
    return any_of([*rule.patterns, *map(literal, rule.words)])


def _is_html_tag(page: TextView, start: int, end: int) -> bool:
    """Tell whether `<s>` or `</s>` is one of a pair in its line: then it strikes words through.

    Unless the two hold the whole text: then they are the tokens that begin and end one.
    """
    text, token = page.text, page.text[start:end]
    if token.startswith("</"):
        line = text[max(0, start - _TAG_SEARCH_CHARS) : start]
        line = line[line.rfind("\n") + 1 :]
        at = line.rfind("<" + token[2:])
        before = text[: start - len(line) + at] if start <= _TAG_SEARCH_CHARS else "more"
        return at >= 0 and (end < page.end or bool(before.strip()))
    if token.startswith("<") and not page.text[: min(start, _TAG_SEARCH_CHARS)].strip():
        rest = text[end : end + _TAG_SEARCH_CHARS].partition("\n")[0]
        closer = "</" + token[1:]
        return closer in rest and bool(rest.partition(closer)[2].strip())
    return False


def _create_edit(page: TextView, free: int, start: int, end: int, rule: str, apart: bool) -> Edit:
    """Return the edit that takes out a run of tokens and the white space that came with it."""
    text = page.text
    first = free + len(text[free:start].rstrip())
    last = page.skip_lines(end)
    # With nothing before it or behind it, all white space there belonged to the template.
    if first == 0:
        return Edit(0, last, "", rule)
    if last >= page.end:
        return Edit(first, len(text), "", rule)
    parts = (text[first:start], text[start:end], text[end:last])
    white = [part.replace(" ", "").replace("\r", "") for part in parts]
    if any("\n\n" in part for part in white):
        return Edit(first, last, "\n\n", rule)
    if any("\n" in part for part in white):
        return Edit(first, last, "\n", rule)
    return Edit(first, last, " " if apart or parts[0] or parts[2] else "", rule)
