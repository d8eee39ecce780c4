"""HTML that an answer was written in, as opposed to HTML that it is about."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import NamedTuple

from validation.rules import SanitizerRule
from validation.sanitizer.edits import Edit
from validation.sanitizer.pattern import Pattern, any_of, literal
from validation.sanitizer.text_view import Page

_RULE = "html_markup"
_BREAKS = {"br", "hr"}
# May stay open in HTML: the next one closes them.
_LOOSE = {"p", "li"}
_ITEM = "li"
_LISTS = {"ul", "ol"}
_BLOCKS = {"p", "div", "blockquote", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "section"}
_LONGEST_ENTITY = 10
_FIRST_TAGS = 100
# Lists within lists are indented up to that depth: what grows with the depth grows with its square.
_DEEPEST = 8


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

    def edits(self, page: Page, prompt: str) -> list[Edit]:
        """Return every tag and entity with what stands there instead."""
        if self._tag is None or "<" not in page.text or not self._tag.found(page):
            return []
        if self._keep and (self._keep.found(page) or self._keep.found(Page(prompt))):
            return []
        tags = _tags(page, self._names)
        if not tags or not _is_balanced(page, tags):
            return []
        return [*_shown(page, tags), *_entities(page)]


def _tags(page: Page, names: set[str]) -> list[_Tag]:
    """Return the tags, none at all if any `<` is something else."""
    # Mostly the first ones show that it is no HTML; all of them are many, and every pass asks.
    if any(_tag(part, names) is None for part in page.text.split("<", _FIRST_TAGS)[1:-1]):
        return []
    first, *parts = page.text.split("<")
    found: list[_Tag] = []
    at = len(first)
    for part in parts:
        name = _tag(part, names)
        if name is None:
            return []
        if name:
            page.budget.spend()
            found.append(_Tag(at, at + part.index(">") + 2, name, part.startswith("/")))
        at += len(part) + 1
    return found


def _tag(part: str, names: set[str]) -> str | None:
    """Return the name of a tag by what stands behind its `<`, "" for a sign, None for neither."""
    body, closed, _ = part.partition(">")
    name = body.strip("/ ").lower()
    if closed and name in names:
        return name
    return "" if part and (part[0].isspace() or part[0].isdigit() or part[0] == "=") else None


def _is_balanced(page: Page, tags: list[_Tag]) -> bool:
    """Tell whether what is opened is closed.

    A text which begins with a block is HTML anyway: it may leave out what HTML lets one leave out,
    and it may be cut off.
    """
    is_page = tags[0].name in _BLOCKS and not page.text[: tags[0].start].strip()
    open_: list[str] = []
    for tag in tags:
        if tag.name in _BREAKS:
            continue
        if not tag.closes:
            open_.append(tag.name)
            continue
        while is_page and open_ and open_[-1] != tag.name and open_[-1] in _LOOSE:
            open_.pop()
        if not open_ or open_.pop() != tag.name:
            return False
    return is_page or not open_


def _shown(page: Page, tags: list[_Tag]) -> Iterator[Edit]:
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
        space = _space(group, lists)
        if space is None:
            for tag in group:
                yield Edit(tag.start, tag.end, "", _RULE)
            continue
        start = page.end_before(group[0].start)
        if not start:
            space = space.lstrip("\n")
        if end == len(text):
            space = ""
        yield Edit(start, end, space, _RULE)


def _space(group: list[_Tag], lists: list[int | None]) -> str | None:
    """Return what stands instead of a group of tags, None if they only shape letters.

    `lists` are the lists that are open, with the number of the last item of a numbered one.
    """
    breaks, is_block, marker = 0, False, ""
    before = len(lists)
    for tag in group:
        if tag.name in _BREAKS:
            breaks += 1
        elif tag.name in _LISTS:
            if not tag.closes:
                lists.append(0 if tag.name == "ol" else None)
            elif lists:
                lists.pop()
            is_block = True
        elif tag.name == _ITEM:
            breaks, marker = max(breaks, 1), ""
            if not tag.closes:
                number = lists[-1] if lists else None
                if number is not None:
                    lists[-1] = number = number + 1
                marker = "- " if number is None else f"{number}. "
        elif tag.name in _BLOCKS:
            is_block = True
    if not breaks and not is_block:
        return None
    is_apart = breaks > 1 or (is_block and not (before and lists))
    return ("\n\n" if is_apart else "\n") + (
        "  " * min(len(lists) - 1, _DEEPEST) + marker if marker else ""
    )


def _entities(page: Page) -> Iterator[Edit]:
    """Yield the entities and what they stand for.

    Those of angle brackets stay if any would begin a tag: it would look like one from then on.
    """
    first, *parts = page.text.split("&")
    page.budget.spend(len(parts))
    at = len(first)
    found: list[Edit] = []
    has_tags = False
    for part in parts:
        size = part.find(";", 0, _LONGEST_ENTITY) + 2
        if size > 1:
            entity = page.text[at : at + size]
            shown = html.unescape(entity).replace("\xa0", " ")
            following = page.text[at + size : at + size + 1]
            has_tags = has_tags or (shown == "<" and (following.isalpha() or following in "/!?<&"))
            if shown != entity:
                found.append(Edit(at, at + size, shown, _RULE))
        at += len(part) + 1
    return (edit for edit in found if not (has_tags and edit.replacement in "<>"))
