"""Removal of chat-template tokens that a model wrote as text instead of as token ids."""

from __future__ import annotations

from validation.rules import SanitizerRule
from validation.sanitizer.edits import Edit
from validation.sanitizer.pattern import NOTHING, Pattern, any_of, literal
from validation.sanitizer.text_view import SENTENCE_ENDS, TextView

_QUOTES = {('"', '"'), ("'", "'"), ("“", "”"), ("\u2018", "\u2019"), ("«", "»"), ("„", "“")}
# How far the other tag of a pair is searched on the line, if `</s>` is an HTML tag.
_TAG_SEARCH_CHARS = 400
# Words around a token in a text about tokens.
_TOPIC_WORDS = (
    r"(?i)\b(?:tokens?|tokeni[sz]ers?|templates?|ChatML|separators?|delimiters?|markers?)\b"
)
_CONTEXT_CHARS = 80
_AFTER_WORD = (" ", ",", ".", ";", ":", ")")


class TokenRules:
    """The rules `template_token` and `edge_token`, together because their tokens may be adjacent.

    Tokens of `template_token` have no other meaning and are removed anywhere. Tokens of
    `edge_token` may also be placeholders or HTML tags. They are removed only at either end of the
    text, next to another token, or right after the end of a sentence.
    """

    def __init__(self, template: SanitizerRule | None, edge: SanitizerRule | None) -> None:
        strong, weak = _token_pattern(template), _token_pattern(edge)
        both = any_of([strong, weak])
        self._strong = Pattern(strong)
        self._runs = Pattern(rf"(?:{both}\s*)*{strong}(?:\s*{both})*") if template else None
        closing = any_of(literal(word) for word in edge.words if word[:2] == "</") if edge else ""
        edges = (
            # Before a word in lower case the token is part of a sentence.
            rf"\A\s*({weak})(?:\S|\s+[^\p{{Ll}}\s]|\s*\z)",
            rf"(?:\A\s*|\S|\pP\s+|\n\s*)({weak})\s*\z",
            rf"({closing})\s*\z",
            rf"({weak}(?:\s*{weak})+)",
            rf"\pL[{SENTENCE_ENDS}]({weak})",
        )
        self._edges = [Pattern(source) for source in edges] if edge else []
        self._topic = Pattern(_TOPIC_WORDS)

    def find_edits(self, view: TextView, spaced: bool) -> list[Edit]:
        """Return the edits of one pass; `spaced` replaces each token between words by a space."""
        spans: list[tuple[int, int, str]] = []
        if self._runs:
            spans += ((*span, "template_token") for span in self._runs.spans(view))
        for pattern in self._edges:
            spans += ((*span, "edge_token") for span in pattern.spans(view, 1))
        # Of spans with the same start, the longest one includes the others.
        spans.sort(key=lambda core: (core[0], -core[1]))
        edits: list[Edit] = []
        end_of_last = 0
        for start, end, rule in spans:
            if start < end_of_last:
                continue
            end_of_last = end
            if not self._is_intended(view, start, end, rule):
                edits.append(
                    _create_edit(view, edits[-1].end if edits else 0, start, end, rule, spaced)
                )
                end_of_last = edits[-1].end
        return edits

    def _is_intended(self, view: TextView, start: int, end: int, rule: str) -> bool:
        """Return whether a token is intended: quoted, HTML, a subject of the text, or code."""
        text = view.text
        if start and (text[start - 1], text[end : end + 1]) in _QUOTES:
            return True
        if rule == "edge_token" and _is_html_tag(view, start, end):
            return True
        if self._is_mentioned(text, start, end):
            return True
        if view.code.find_span(start, end) is None:
            return False
        # A token that ends an answer within code is removed, unless earlier code has tokens too:
        # then the answer is about tokens.
        return end < view.end or any(
            view.code.find_span(*span)
            for span in self._strong.spans(TextView(text[:start], view.budget))
        )

    def _is_mentioned(self, text: str, start: int, end: int) -> bool:
        """Return whether a token is used like a word in a line about tokens."""
        if text[max(0, start - 1) : start] not in ("", "\n", " ", "("):
            return False
        if text[end : end + 1] not in _AFTER_WORD or text[end - 1] not in ">]":
            return False
        before = text[max(0, start - _CONTEXT_CHARS) : start].rpartition("\n")[2]
        after = text[end : end + _CONTEXT_CHARS].partition("\n")[0]
        return bool(after.strip()) and self._topic.matches(TextView(f"{before} {after}"))


def _token_pattern(rule: SanitizerRule | None) -> str:
    if rule is None:
        return NOTHING
    # Patterns first: a whole header is more than the token that it begins with.
    return any_of([*rule.patterns, *map(literal, rule.words)])


def _is_html_tag(view: TextView, start: int, end: int) -> bool:
    """Return whether `<s>` or `</s>` is one of a pair on a line, which is HTML for strikethrough.

    A pair around the whole text is not HTML but the tokens at the start and the end.
    """
    text, token = view.text, view.text[start:end]
    if token.startswith("</"):
        line = text[max(0, start - _TAG_SEARCH_CHARS) : start]
        line = line[line.rfind("\n") + 1 :]
        at = line.rfind("<" + token[2:])
        before = text[: start - len(line) + at] if start <= _TAG_SEARCH_CHARS else "more"
        return at >= 0 and (end < view.end or bool(before.strip()))
    if token.startswith("<") and not view.text[: min(start, _TAG_SEARCH_CHARS)].strip():
        rest = text[end : end + _TAG_SEARCH_CHARS].partition("\n")[0]
        end_tag = "</" + token[1:]
        return end_tag in rest and bool(rest.partition(end_tag)[2].strip())
    return False


def _create_edit(
    view: TextView, previous_end: int, start: int, end: int, rule: str, spaced: bool
) -> Edit:
    """Return the edit that removes a run of tokens and the white space around it."""
    text = view.text
    first = previous_end + len(text[previous_end:start].rstrip())
    last = view.skip_lines(end)
    # At either end of the text, the white space around the token belongs to the template.
    if first == 0:
        return Edit(0, last, "", rule)
    if last >= view.end:
        return Edit(first, len(text), "", rule)
    parts = (text[first:start], text[start:end], text[end:last])
    spaces = [part.replace(" ", "").replace("\r", "") for part in parts]
    if any("\n\n" in part for part in spaces):
        return Edit(first, last, "\n\n", rule)
    if any("\n" in part for part in spaces):
        return Edit(first, last, "\n", rule)
    return Edit(first, last, " " if spaced or parts[0] or parts[2] else "", rule)
