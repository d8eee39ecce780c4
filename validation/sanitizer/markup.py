"""The rule `html_markup`: converts an answer that is written in HTML to text."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import NamedTuple

from validation.rules import SanitizerRule
from validation.sanitizer.edits import Edit
from validation.sanitizer.pattern import Pattern, any_of, literal
from validation.sanitizer.text_view import TextView

_RULE_ID = "html_markup"
_BREAK_TAGS = {"br", "hr"}
# Tags whose end tag is optional in HTML: the next such tag closes them.
_OPTIONAL_END_TAGS = {"p", "li"}
_ITEM_TAG = "li"
_LIST_TAGS = {"ul", "ol"}
_BLOCK_TAGS = {"p", "div", "blockquote", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "section"}
_MAX_ENTITY_CHARS = 10
_SAMPLE_TAGS = 100
# Nested lists are indented up to this depth. Indenting any depth would take quadratic space.
_MAX_LIST_INDENT = 8


class _Tag(NamedTuple):
    """`text[start:end]` is the tag; `name` is in lower case."""

    start: int
    end: int
    name: str
    closes: bool


class Markup:
    """The rule `html_markup`: an answer written in HTML becomes the text that a browser shows.

    It applies only to whole answers: every `<` must start a tag of the rule's `words`, without
    attributes and balanced. The rule's `patterns`, for Markdown, code and texts about HTML, must
    not match the answer or the prompt, because HTML within Markdown is intended.
    """

    def __init__(self, rule: SanitizerRule | None) -> None:
        names = rule.words if rule else []
        self._names = {name.lower() for name in names}
        self._tag = Pattern(rf"(?i)</?{any_of(map(literal, names))}\s?/?>") if names else None
        keep = rule.patterns if rule else []
        self._keep = Pattern(any_of(keep)) if keep else None

    def find_edits(self, view: TextView, prompt: str) -> list[Edit]:
        """Return an edit for each tag and entity."""
        if self._tag is None or "<" not in view.text or not self._tag.matches(view):
            return []
        if self._keep and (self._keep.matches(view) or self._keep.matches(TextView(prompt))):
            return []
        tags = _find_tags(view, self._names)
        if not tags or not _is_balanced(view, tags):
            return []
        return [*_replace_tags(view, tags), *_replace_entities(view)]


def _find_tags(view: TextView, names: set[str]) -> list[_Tag]:
    """Return the tags, or an empty list if any `<` is not part of a tag."""
    # Check a sample first: usually the first tags show that the text is not HTML, and this runs in
    # every pass.
    if any(
        _parse_tag_name(part, names) is None for part in view.text.split("<", _SAMPLE_TAGS)[1:-1]
    ):
        return []
    first, *parts = view.text.split("<")
    tags: list[_Tag] = []
    at = len(first)
    for part in parts:
        name = _parse_tag_name(part, names)
        if name is None:
            return []
        if name:
            view.budget.spend()
            tags.append(_Tag(at, at + part.index(">") + 2, name, part.startswith("/")))
        at += len(part) + 1
    return tags


def _parse_tag_name(part: str, names: set[str]) -> str | None:
    """Return the name of the tag after a `<`, "" for a less-than sign, None for anything else."""
    body, closed, _ = part.partition(">")
    name = body.strip("/ ").lower()
    if closed and name in names:
        return name
    return "" if part and (part[0].isspace() or part[0].isdigit() or part[0] == "=") else None


def _is_balanced(view: TextView, tags: list[_Tag]) -> bool:
    """Return whether all tags are closed.

    A text that starts with a block tag is HTML in any case, so it may omit optional end tags and be
    truncated.
    """
    is_html = tags[0].name in _BLOCK_TAGS and not view.text[: tags[0].start].strip()
    open_tags: list[str] = []
    for tag in tags:
        if tag.name in _BREAK_TAGS:
            continue
        if not tag.closes:
            open_tags.append(tag.name)
            continue
        while (
            is_html
            and open_tags
            and open_tags[-1] != tag.name
            and open_tags[-1] in _OPTIONAL_END_TAGS
        ):
            open_tags.pop()
        if not open_tags or open_tags.pop() != tag.name:
            return False
    return is_html or not open_tags


def _replace_tags(view: TextView, tags: list[_Tag]) -> Iterator[Edit]:
    """Yield the edits for the tags. Tags with only white space between them become one edit."""
    text = view.text
    lists: list[int | None] = []
    first = 0
    while first < len(tags):
        last = first
        end = view.skip_space(tags[first].end)
        while last + 1 < len(tags) and tags[last + 1].start == end:
            last += 1
            end = view.skip_space(tags[last].end)
        group = tags[first : last + 1]
        first = last + 1
        space = _group_replacement(group, lists)
        if space is None:
            for tag in group:
                yield Edit(tag.start, tag.end, "", _RULE_ID)
            continue
        start = view.end_before(group[0].start)
        if not start:
            space = space.lstrip("\n")
        if end == len(text):
            space = ""
        yield Edit(start, end, space, _RULE_ID)


def _group_replacement(group: list[_Tag], lists: list[int | None]) -> str | None:
    """Return the replacement for a group of tags, or None if they only format text.

    `lists` is the stack of open lists, with the number of the last item of a numbered list.
    """
    breaks, is_block, marker = 0, False, ""
    before = len(lists)
    for tag in group:
        if tag.name in _BREAK_TAGS:
            breaks += 1
        elif tag.name in _LIST_TAGS:
            _open_or_close_list(tag, lists)
            is_block = True
        elif tag.name == _ITEM_TAG:
            breaks, marker = max(breaks, 1), "" if tag.closes else _next_marker(lists)
        elif tag.name in _BLOCK_TAGS:
            is_block = True
    if not breaks and not is_block:
        return None
    needs_blank_line = breaks > 1 or (is_block and not (before and lists))
    return ("\n\n" if needs_blank_line else "\n") + (
        "  " * min(len(lists) - 1, _MAX_LIST_INDENT) + marker if marker else ""
    )


def _open_or_close_list(tag: _Tag, lists: list[int | None]) -> None:
    if not tag.closes:
        lists.append(0 if tag.name == "ol" else None)
    elif lists:
        lists.pop()


def _next_marker(lists: list[int | None]) -> str:
    """Return what precedes the next item of the innermost list, which is counted."""
    number = lists[-1] if lists else None
    if number is None:
        return "- "
    lists[-1] = number + 1
    return f"{number + 1}. "


def _replace_entities(view: TextView) -> Iterator[Edit]:
    """Yield an edit for each entity.

    Entities of angle brackets stay if any of them would form a tag.
    """
    first, *parts = view.text.split("&")
    view.budget.spend(len(parts))
    at = len(first)
    edits: list[Edit] = []
    has_tags = False
    for part in parts:
        size = part.find(";", 0, _MAX_ENTITY_CHARS) + 2
        if size > 1:
            entity = view.text[at : at + size]
            character = html.unescape(entity).replace("\xa0", " ")
            following = view.text[at + size : at + size + 1]
            has_tags = has_tags or (
                character == "<" and (following.isalpha() or following in "/!?<&")
            )
            if character != entity:
                edits.append(Edit(at, at + size, character, _RULE_ID))
        at += len(part) + 1
    return (edit for edit in edits if not (has_tags and edit.replacement in "<>"))
