"""HTML that an answer was written in, as opposed to HTML that it is about."""

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
# May stay open in HTML: the next one closes them.
_OPTIONAL_END_TAGS = {"p", "li"}
_ITEM_TAG = "li"
_LIST_TAGS = {"ul", "ol"}
_BLOCK_TAGS = {"p", "div", "blockquote", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "section"}
_MAX_ENTITY_CHARS = 10
_SAMPLE_TAGS = 100
# Lists within lists are indented up to that depth: what grows with the depth grows with its square.
_MAX_LIST_INDENT = 8


class _Tag(NamedTuple):
    """`text[start:end]` is the tag; `name` is in lower case."""

    start: int
    end: int
    name: str
    closes: bool


class Markup:
    """The rule `html_markup`: an answer written in HTML becomes the text that it shows.

    It is taken for one only as a whole: every `<` begins a tag of the rule's `words`, without
    attributes and balanced, and nothing in the answer or the prompt is one of its `patterns`, which
    are Markdown, code, and talk about HTML. Markdown with HTML in it is meant to be that.
    """

    def __init__(self, rule: SanitizerRule | None) -> None:
        names = rule.words if rule else []
        self._names = {name.lower() for name in names}
        self._tag = Pattern(rf"(?i)</?{any_of(map(literal, names))}\s?/?>") if names else None
        keep = rule.patterns if rule else []
        self._keep = Pattern(any_of(keep)) if keep else None

    def edits(self, page: TextView, prompt: str) -> list[Edit]:
        """Return every tag and entity with what stands there instead."""
        if self._tag is None or "<" not in page.text or not self._tag.found(page):
            return []
        if self._keep and (self._keep.found(page) or self._keep.found(TextView(prompt))):
            return []
        tags = _find_tags(page, self._names)
        if not tags or not _is_balanced(page, tags):
            return []
        return [*_replace_tags(page, tags), *_replace_entities(page)]


def _find_tags(page: TextView, names: set[str]) -> list[_Tag]:
    """Return the tags, none at all if any `<` is something else."""
    # Mostly the first ones show that it is no HTML; all of them are many, and every pass asks.
    if any(
        _parse_tag_name(part, names) is None for part in page.text.split("<", _SAMPLE_TAGS)[1:-1]
    ):
        return []
    first, *parts = page.text.split("<")
    found: list[_Tag] = []
    at = len(first)
    for part in parts:
        name = _parse_tag_name(part, names)
        if name is None:
            return []
        if name:
            page.budget.spend()
            found.append(_Tag(at, at + part.index(">") + 2, name, part.startswith("/")))
        at += len(part) + 1
    return found


def _parse_tag_name(part: str, names: set[str]) -> str | None:
    """Return the name of a tag by what stands behind its `<`, "" for a sign, None for neither."""
    body, closed, _ = part.partition(">")
    name = body.strip("/ ").lower()
    if closed and name in names:
        return name
    return "" if part and (part[0].isspace() or part[0].isdigit() or part[0] == "=") else None


def _is_balanced(page: TextView, tags: list[_Tag]) -> bool:
    """Tell whether what is opened is closed.

    A text which begins with a block is HTML anyway: it may leave out what HTML lets one leave out,
    and it may be cut off.
    """
    is_page = tags[0].name in _BLOCK_TAGS and not page.text[: tags[0].start].strip()
    open_: list[str] = []
    for tag in tags:
        if tag.name in _BREAK_TAGS:
            continue
        if not tag.closes:
            open_.append(tag.name)
            continue
        while is_page and open_ and open_[-1] != tag.name and open_[-1] in _OPTIONAL_END_TAGS:
            open_.pop()
        if not open_ or open_.pop() != tag.name:
            return False
    return is_page or not open_


def _replace_tags(page: TextView, tags: list[_Tag]) -> Iterator[Edit]:
    """Yield what becomes of the tags: those with only white space between them at once."""
    text = page.text
    lists: list[int | None] = []
    first = 0
    while first < len(tags):
        last = first
        end = page.skip_space(tags[first].end)
        while last + 1 < len(tags) and tags[last + 1].start == end:
            last += 1
            end = page.skip_space(tags[last].end)
        group = tags[first : last + 1]
        first = last + 1
        space = _group_replacement(group, lists)
        if space is None:
            for tag in group:
                yield Edit(tag.start, tag.end, "", _RULE_ID)
            continue
        start = page.end_before(group[0].start)
        if not start:
            space = space.lstrip("\n")
        if end == len(text):
            space = ""
        yield Edit(start, end, space, _RULE_ID)


def _group_replacement(group: list[_Tag], lists: list[int | None]) -> str | None:
    """Return what stands instead of a group of tags, None if they only shape letters.

    `lists` are the lists that are open, with the number of the last item of a numbered one.
    """
    breaks, is_block, marker = 0, False, ""
    before = len(lists)
    for tag in group:
        if tag.name in _BREAK_TAGS:
            breaks += 1
        elif tag.name in _LIST_TAGS:
            if not tag.closes:
                lists.append(0 if tag.name == "ol" else None)
            elif lists:
                lists.pop()
            is_block = True
        elif tag.name == _ITEM_TAG:
            breaks, marker = max(breaks, 1), ""
            if not tag.closes:
                number = lists[-1] if lists else None
                if number is not None:
                    lists[-1] = number = number + 1
                marker = "- " if number is None else f"{number}. "
        elif tag.name in _BLOCK_TAGS:
            is_block = True
    if not breaks and not is_block:
        return None
    is_apart = breaks > 1 or (is_block and not (before and lists))
    return ("\n\n" if is_apart else "\n") + (
        "  " * min(len(lists) - 1, _MAX_LIST_INDENT) + marker if marker else ""
    )


def _replace_entities(page: TextView) -> Iterator[Edit]:
    """Yield the entities and what they stand for.

    Those of angle brackets stay if any would begin a tag: it would look like one from then on.
    """
    first, *parts = page.text.split("&")
    page.budget.spend(len(parts))
    at = len(first)
    found: list[Edit] = []
    has_tags = False
    for part in parts:
        size = part.find(";", 0, _MAX_ENTITY_CHARS) + 2
        if size > 1:
            entity = page.text[at : at + size]
            shown = html.unescape(entity).replace("\xa0", " ")
            following = page.text[at + size : at + size + 1]
            has_tags = has_tags or (shown == "<" and (following.isalpha() or following in "/!?<&"))
            if shown != entity:
                found.append(Edit(at, at + size, shown, _RULE_ID))
        at += len(part) + 1
    return (edit for edit in found if not (has_tags and edit.replacement in "<>"))
