"""Detection of telephone numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

from validation.options.pii_text import is_word_character

# ITU-T E.164: the digits of an international number. Shorter ones are mostly not telephone numbers.
_MIN_DIGITS = 8
_MAX_DIGITS = 15
# Length limits of a number with its separators. Longer runs are tables or lists, and are split.
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
    # North America: (415) 555-2671, 415-555-2671, 1-800-555-0199. With spaces only, it needs the
    # leading 1: "256 512 1024" has the same shape.
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
# An area code with trunk prefix 0, then groups: 030 12345678, (02) 9876 5432, 0171/2345678.
_SEPARATOR = rf"(?:[{_SPACES}]?[{_DASHES}./][{_SPACES}]?|[{_SPACES}])"
_TRUNK = re.compile(
    rf"(?:0[1-9]\d{{0,3}}{_SEPARATOR}|\(0[1-9]\d{{0,3}}\){_SEPARATOR}?)\d{{2,8}}(?:{_SEPARATOR}\d{{2,8}}){{0,4}}"
)
# Group lengths of other numbers: social security numbers, zip codes, hexdumps and times.
_OTHER_GROUP_LENGTHS = {(3, 2, 4), (5, 4), (4, 4, 2), (4, 4, 4)}
_YEARS = re.compile(r"(?:19|20)\d\d")
_LABEL = re.compile(
    # Check the first letter first: most texts before a number do not start with one of these.
    r"(?=[tcpfmhw電电手т])(?<![^\W_])"
    r"(?:telefoo?n|t[ée]l(?:[ée]fono|[ée]phone)?|(?:cell ?|mobile ?)?phone|fon|fax"
    r"|mobile?|handy|whatsapp|電話|电话|手机|тел|телефон)"
    r"(?: ?(?:no|nr|number|num))? {0,2}[:.=\uff1a]{1,2} {0,3}\Z",
    re.IGNORECASE,
)
# Longer than any match of _LABEL, so that the search never starts within a word.
_LABEL_SEARCH_CHARS = 48


def find_phone_numbers(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of telephone numbers in a run of digits and separators.

    International numbers need a plus or zeros, and must be valid in their country. National numbers
    need a format that nothing else has, or a label before them. Digits alone are never a number.
    """
    if end - start <= _MAX_CHARS or text[start] == "+":
        number = _find_number(text, start, min(end, start + _MAX_CHARS))
        if number:
            yield number
            return
    if end - start <= _MIN_CHARS or not _HAS_SPACE.search(text, start, end):
        return  # the run is one word, which was already checked or is too long
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
    """Return the span of the number at the start of a piece of text, or None."""
    piece = text[start:end]
    while piece[:1] == "(" and piece.count("(") > piece.count(")"):
        start, piece = start + 1, piece[1:]
    if not _MIN_CHARS <= len(piece) <= _MAX_CHARS:
        return None
    is_labelled = False
    if piece[0] == "+" or piece.startswith(("00", "(+")):
        end = start + _international_length(piece)
    elif not _is_national(piece):
        is_labelled = _is_labelled(text, start, piece)
        if not is_labelled:
            return None
    if end == start or not (is_labelled or _is_start_boundary(text, start)):
        return None
    return (start, end) if _is_end_boundary(text, end) else None


def _is_national(piece: str) -> bool:
    if _NATIONAL.fullmatch(piece):
        # "(12) 2024-2025" is a note with two years.
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
        separators = set(_DIGITS.split(piece)[1:-1])
        return len(groups) == 5 and len(separators) == 1 and not steps <= {0, 1, 2, 5, 10}
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
    is_date = len(groups) == 3 and digits == 8
    return 7 <= digits <= _MAX_DIGITS and not is_date and _has_valid_separators(parts)


def _international_length(piece: str) -> int:
    """Return the length of the longest prefix that is a number with a country code, or 0."""
    if piece[1:].isdigit():
        return len(piece) if piece[0] == "+" and _is_valid_number(piece[1:]) else 0
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
    if not _is_valid_number("".join(groups)[0 if plus else 2 :]):
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


@lru_cache(maxsize=1_000)
def _is_valid_number(digits: str) -> bool:
    """Return whether digits, without a plus or zeros before them, are a number of any country."""
    if not _MIN_DIGITS <= len(digits) <= _MAX_DIGITS:
        return False
    # Imported here: it takes 40 ms, and most servers redact nothing.
    import phonenumbers

    if not any(
        int(digits[:size]) in phonenumbers.COUNTRY_CODE_TO_REGION_CODE for size in (1, 2, 3)
    ):
        return False
    try:
        return phonenumbers.is_valid_number(phonenumbers.parse("+" + digits))
    except phonenumbers.NumberParseException:
        return False


def _has_valid_separators(parts: Sequence[str]) -> bool:
    """Return whether all separators between the groups of digits, at odd indexes, are allowed."""
    separators = parts[2:-1:2]
    return len(separators) <= 8 and all(map(_is_separator, separators))


@lru_cache(maxsize=1_000)
def _is_separator(part: str) -> bool:
    return _BETWEEN.fullmatch(part) is not None


def _is_start_boundary(text: str, start: int) -> bool:
    """Return whether the text before a number ends: no word, path, amount or longer number."""
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
