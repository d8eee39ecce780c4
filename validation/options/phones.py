"""Which runs of digits and separators are telephone numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

from validation.options.country_codes import MAX_DIGITS, is_international_number
from validation.options.pii_text import is_word_character

# Nothing longer is one number; longer runs are tables or lists, and looked at piece by piece.
_MAX_CHARS = 40
_MIN_CHARS = 7

_SPACES = " \u00a0\u2009\u202f"
_DASHES = "\\-\u2010\u2011\u2013"
_BETWEEN = re.compile(
    rf"[{_SPACES}]?[{_DASHES}./]?[{_SPACES}]?|[{_SPACES}]?\(|\)[{_SPACES}{_DASHES}]?"
)
_DIGITS = re.compile(r"[0-9]+")
_PARTS = re.compile(r"([0-9]+)")
_PIECES = re.compile(rf"[{_SPACES}]+[/{_DASHES}][{_SPACES}]+|[{_SPACES}]+(?=\()|[{_SPACES}]{{2,}}")
_HAS_SPACE = re.compile(rf"[{_SPACES}]")
_WORDS = re.compile(rf"(?<![^{_SPACES}])[^{_SPACES}]{{9,40}}(?![^{_SPACES}])")

_NATIONAL = re.compile(
    # North America: (415) 555-2671, 415-555-2671, 1-800-555-0199. Blanks alone do not make one:
    # "256 512 1024" has the same shape.
    r"(?:1[-. ])?(?:\([2-9]\d\d\) ?[2-9]\d\d[-. ]\d{4}"
    r"|[2-9]\d\d-[2-9]\d\d-\d{4}|[2-9]\d\d\.[2-9]\d\d\.\d{4})"
    r"|1 [2-9]\d\d [2-9]\d\d \d{4}"
    # Brazil: (11) 91234-5678.
    r"|\([1-9]\d\) ?9?[2-5]\d{3}-\d{4}|\([1-9]\d\) ?9\d{4}-\d{4}"
    # Russia: 8 (495) 123-45-67, 8-800-555-35-35.
    r"|8[- ]?\(?[3489]\d\d\)?[- ]\d{3}[- ]\d\d[- ]\d\d"
    # China: 138-1234-5678.
    r"|1[3-9]\d-\d{4}-\d{4}"
    # India: 098765 43210.
    r"|0[6-9]\d{4}[- ]\d{5}"
    # Turkey: 0 (532) 123 45 67.
    r"|0 ?\([2-5]\d\d\) ?\d{3} \d\d \d\d"
)
# An area code with its zero, then groups: 030 12345678, (02) 9876 5432, 0171/2345678.
_SEPARATOR = rf"(?:[{_SPACES}]?[{_DASHES}./][{_SPACES}]?|[{_SPACES}])"
_TRUNK = re.compile(
    rf"(?:0[1-9]\d{{0,3}}{_SEPARATOR}|\(0[1-9]\d{{0,3}}\){_SEPARATOR}?)\d{{2,8}}(?:{_SEPARATOR}\d{{2,8}}){{0,4}}"
)
# Groups that are something else: social security numbers, zip codes, hexdumps and hours.
_OTHER_GROUP_LENGTHS = {(3, 2, 4), (5, 4), (4, 4, 2), (4, 4, 4)}
_YEARS = re.compile(r"(?:19|20)\d\d")
_LABEL = re.compile(
    # Of what may begin one first: most of what stands before a number does not.
    r"(?=[tcpfmhw電电手т])(?<![^\W_])"
    r"(?:telefoo?n|t[ée]l(?:[ée]fono|[ée]phone)?|(?:cell ?|mobile ?)?phone|fon|fax"
    r"|mobile?|handy|whatsapp|電話|电话|手机|тел|телефон)"
    r"(?: ?(?:no|nr|number|num))? {0,2}[:.=\uff1a]{1,2} {0,3}\Z",
    re.IGNORECASE,
)
# Longer than anything the label matches, so that it never sees half a word.
_LABEL_SEARCH_CHARS = 48


def find_phone_numbers(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield where in a run of digits and separators there are telephone numbers.

    International ones need a plus or zeros and a country code that exists, national ones a shape
    that is used for nothing else or a label before them. Digits alone are never one.
    """
    if end - start <= _MAX_CHARS or text[start] == "+":
        number = _find_number(text, start, min(end, start + _MAX_CHARS))
        if number:
            yield number
            return
    if end - start <= _MIN_CHARS or not _HAS_SPACE.search(text, start, end):
        return  # all of it is one word, which has been looked at or is too long
    for first, last in _split(_PIECES, text, start, end):
        number = _find_number(text, first, last) if last - first < end - start else None
        if number:
            yield number
            continue
        for word in _WORDS.finditer(text, first, last):
            number = _find_number(text, *word.span())
            if number:
                yield number


def _split(pattern: re.Pattern[str], text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    for match in pattern.finditer(text, start, end):
        yield start, match.start()
        start = match.end()
    yield start, end


def _find_number(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Return where in a piece of text there is a number, which begins where the piece does."""
    piece = text[start:end]
    while piece[:1] == "(" and piece.count("(") > piece.count(")"):
        start, piece = start + 1, piece[1:]
    if not _MIN_CHARS <= len(piece) <= _MAX_CHARS:
        return None
    labelled = False
    if piece[0] == "+" or piece.startswith(("00", "(+")):
        end = start + _international_length(piece)
    elif not _is_national(piece):
        labelled = _is_labelled(text, start, piece)
        if not labelled:
            return None
    if end == start or not (labelled or _is_start_boundary(text, start)):
        return None
    return (start, end) if _is_end_boundary(text, end) else None


def _is_national(piece: str) -> bool:
    if _NATIONAL.fullmatch(piece):
        # "(12) 2024-2025" is a note and two years.
        return len(_YEARS.findall(piece)) < 2
    if piece[0] not in "0(" or not _TRUNK.fullmatch(piece):
        return False
    groups = _DIGITS.findall(piece)
    lengths = tuple(map(len, groups))
    if not 9 <= sum(lengths) <= 12 or lengths in _OTHER_GROUP_LENGTHS or piece.count("/") > 1:
        return False
    if lengths[:3] == (2, 2, 4) and _YEARS.match(groups[2]):
        return False
    if set(lengths) == {3} and not {"-", "("} & set(piece):
        return False  # an address, a number in thousands, a table
    if set(lengths) == {2}:
        steps = {int(b) - int(a) for a, b in pairwise(groups)}
        between = set(_DIGITS.split(piece)[1:-1])
        return len(groups) == 5 and len(between) == 1 and not steps <= {0, 1, 2, 5, 10}
    return True


def _is_labelled(text: str, start: int, piece: str) -> bool:
    last = text[max(0, start - 4) : start].rstrip(" ")[-1:]
    if (
        not last
        or last not in ":.=\uff1a"
        or not _LABEL.search(text[max(0, start - _LABEL_SEARCH_CHARS) : start])
    ):
        return False
    parts = _PARTS.split(piece)
    groups = parts[1::2]
    digits = sum(map(len, groups))
    dated = len(groups) == 3 and digits == 8
    return 7 <= digits <= MAX_DIGITS and not dated and _has_valid_separators(parts)


def _international_length(piece: str) -> int:
    """Return the length of the longest beginning that is a number with a country code."""
    if piece[1:].isdigit():
        return len(piece) if piece[0] == "+" and is_international_number(piece[1:]) else 0
    for match in reversed([*_DIGITS.finditer(piece)]):
        end = match.end()
        if end < 9:
            break
        if piece[end : end + 1] == ")" and "(" in piece[:end]:
            end += 1
        if _is_international(piece[:end]):
            return end
    return 0


def _is_international(number: str) -> bool:
    plus = number[0] != "0"
    parts = _PARTS.split(number)
    groups = parts[1::2]
    if not is_international_number("".join(groups)[0 if plus else 2 :]):
        return False
    if not plus and (
        len(groups) == 1
        or len(groups[0]) > 5
        or groups[1][0] == "0"
        or set(map(len, groups)) == {4}
    ):
        return False  # a number, a hexdump
    if len(groups) == 2 and "." in number:
        return False  # a decimal number
    return _has_valid_separators(parts)


def _has_valid_separators(parts: Sequence[str]) -> bool:
    """Whether what stands between groups of digits may; both take turns, and digits are second."""
    between = parts[2:-1:2]
    return len(between) <= 8 and all(map(_is_separator, between))


@lru_cache(maxsize=1_000)
def _is_separator(part: str) -> bool:
    return _BETWEEN.fullmatch(part) is not None


def _is_start_boundary(text: str, start: int) -> bool:
    """Whether nothing before it makes it a part of a word, a path, a sum or a longer number."""
    before = text[start - 1] if start else " "
    if before.isspace():
        return True
    if is_word_character(before) or before in "+-./\\#$€£¥%&@*^":
        return False
    return not (before in ",:" and start > 1 and text[start - 2].isdigit())


def _is_end_boundary(text: str, end: int) -> bool:
    after = text[end] if end < len(text) else " "
    if after.isspace():
        return True
    if is_word_character(after) or after in "€£¥%@":
        return False
    return not (after in ",.:-/" and end + 1 < len(text) and is_word_character(text[end + 1]))
