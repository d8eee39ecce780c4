"""Detection of payment card numbers and IBANs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice, pairwise

from validation.options.pii_text import SEPARATORS, PiiText, Span, digit_run, is_word_character

# The length of each country's IBANs, from SWIFT's registry (ISO 13616).
_IBAN_LENGTHS = {
    entry[:2]: int(entry[2:])
    for entry in (
        "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 "
        "DK18 DO28 EE20 EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 "
        "IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 "
        "MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 "
        "SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30"
    ).split()
}
# Two letters and two digits. It starts with the first digit, which `re` searches quickly.
_IBAN = re.compile(r"[0-9](?<=(?<![A-Za-z0-9_])[A-Za-z]{2}[0-9])[0-9]")
# Only IBANs in capitals may be in groups: otherwise a series of words would match.
_IBAN_SHAPES = {
    length: re.compile(
        rf"(?:[A-Z0-9][{SEPARATORS}]?){{{length - 1}}}[A-Z0-9]|[A-Za-z0-9]{{{length}}}"
    )
    for length in set(_IBAN_LENGTHS.values())
}
_TO_NUMBERS = str.maketrans({chr(55 + number): str(number) for number in range(10, 36)})
_NO_SEPARATORS = {ord(char): None for char in SEPARATORS}


def find_ibans(text_view: PiiText) -> Iterator[Span]:
    """Yield the spans of IBANs, with or without separators between groups."""
    text, end_of_last = text_view.text, 0
    for head in _IBAN.finditer(text):
        start = head.start() - 2
        length = _IBAN_LENGTHS.get(text[start : start + 2].upper())
        if length is None or start < end_of_last or (start and is_word_character(text[start - 1])):
            continue
        match = _IBAN_SHAPES[length].match(text, start)
        if match is None or text[match.end() : match.end() + 1].isalnum():
            continue
        if has_iban_checksum(match.group()):
            end_of_last = match.end()
            yield start, end_of_last


def has_iban_checksum(text: str) -> bool:
    """Return whether the check digits are right (ISO 7064, MOD 97-10).

    With the first four characters moved to the end and letters replaced by 10 to 35, the number
    modulo 97 must be 1.
    """
    characters = text.translate(_NO_SEPARATORS).upper()
    return int((characters[4:] + characters[:4]).translate(_TO_NUMBERS)) % 97 == 1


# Ranges of the first four digits and the allowed lengths, from the networks' public ranges (ISO/IEC
# 7812 issuer identification numbers).
_NETWORKS = (
    (2200, 2204, {16, 17, 18, 19}),  # Mir
    (2221, 2720, {16}),  # Mastercard
    (3000, 3059, {14, 16}),  # Diners Club
    (3095, 3095, {14, 16}),
    (3400, 3499, {15}),  # American Express
    (3528, 3589, {16, 17, 18, 19}),  # JCB
    (3600, 3699, {14, 16}),  # Diners Club
    (3700, 3799, {15}),  # American Express
    (3800, 3999, {14, 16}),  # Diners Club
    (4000, 4999, {13, 16, 19}),  # Visa
    (5000, 5099, {13, 14, 15, 16, 17, 18, 19}),  # Maestro, Elo, Verve, Dankort, RuPay
    (5100, 5599, {16}),  # Mastercard
    (5600, 5899, {13, 14, 15, 16, 17, 18, 19}),  # Maestro
    (6011, 6011, {16, 17, 18, 19}),  # Discover
    (6000, 6099, {16}),  # RuPay, Hipercard
    (6200, 6299, {16, 17, 18, 19}),  # UnionPay, Elo
    (6304, 6304, {13, 14, 15, 16, 17, 18, 19}),  # Maestro
    (6360, 6399, {16}),  # Elo, InstaPayment
    (6440, 6599, {16, 17, 18, 19}),  # Discover, RuPay, Troy
    (6700, 6799, {13, 14, 15, 16, 17, 18, 19}),  # Maestro
    (8100, 8199, {16, 17, 18, 19}),  # UnionPay, RuPay
    (8600, 8600, {16}),  # Uzcard
    (9792, 9792, {16}),  # Troy
    (9860, 9860, {16}),  # Humo
)
_CARD_LENGTHS: dict[str, frozenset[int]] = {}
for _low, _high, _lengths in _NETWORKS:
    for _first in range(_low, _high + 1):
        _CARD_LENGTHS[str(_first)] = _CARD_LENGTHS.get(str(_first), frozenset()) | _lengths

_CARD = re.compile(digit_run(SEPARATORS, max_separators=1, min_digits=13))
# The groups of digits in which card numbers are written.
_PRINTED_GROUPS = (
    (4, 4, 4, 4, 3),
    (4, 4, 4, 4),
    (4, 6, 5),
    (4, 6, 4),
    (6, 13),
    (16,),
    (15,),
    (14,),
)
_DIGITS = re.compile("[0-9]+")
_YEAR_OR_EXPIRY = re.compile(r"(?:19|20)[0-9]{2}|(?:0[1-9]|1[0-2])[2-4][0-9]")
_HEX_BEFORE = re.compile(r"\b([0-9A-Fa-f]{4,5})\s\Z")
_HEX_AFTER = re.compile(r"\s([0-9A-Fa-f]{4,5})\b")


# Printed groups with another separator, the same between all of them.
_GROUPED_CARD = re.compile(
    r"(?<![0-9])(?<![0-9][./_,])"
    r"[0-9]{4}(?P<separator>[./_,])(?:[0-9]{4}(?P=separator)[0-9]{4}(?P=separator)[0-9]{4}"
    r"|[0-9]{6}(?P=separator)[0-9]{5})(?![0-9])(?![./_,][0-9])"
)


def find_cards(text_view: PiiText) -> Iterator[Span]:
    """Yield the spans of payment card numbers."""
    text = text_view.text
    for match in _GROUPED_CARD.finditer(text):
        if is_card_number(match.group().replace(match["separator"], "")):
            start, end = match.span()
            if _has_card_boundaries(text, start, end) and not _is_in_table(text, start, end):
                yield start, end
    for match in _CARD.finditer(text):
        start, end = match.span()
        if end - start <= 19 + 18 and is_card_number(text[start:end].translate(_NO_SEPARATORS)):
            if _has_card_boundaries(text, start, end) and not _is_in_table(text, start, end):
                yield start, end
        else:
            yield from _find_cards_among_numbers(text, start, end)


def _find_cards_among_numbers(text: str, start: int, end: int) -> list[Span]:
    """Return the cards of a run of digits that also has years, dates or short numbers.

    With other groups of four digits, the run counts as part of a table and has no cards.
    """
    card_spans: list[Span] = []
    other_groups = 0
    groups: list[Span] = []
    numbers = _DIGITS.finditer(text, start, end)
    while True:
        groups += [match.span() for match in islice(numbers, 5 - len(groups))]
        if not groups:
            return card_spans
        size = _count_card_groups(text, groups)
        if size:
            card_spans.append((groups[0][0], groups[size - 1][1]))
            other_groups = 0
        else:
            size, other_groups = 1, other_groups + 1
            first, last = groups[0]
            if other_groups > 3:
                return card_spans
            if last - first == 4 and not _YEAR_OR_EXPIRY.fullmatch(text, first, last):
                return []
        del groups[:size]


def _count_card_groups(text: str, groups: list[Span]) -> int:
    """Return the number of groups of the card at the start of `groups`, 0 without a card."""
    first = groups[0][0]
    if groups[0][1] - first < 4 or text[first : first + 4] not in _CARD_LENGTHS:
        return 0
    lengths = tuple([last - first for first, last in groups])
    for size in _possible_group_counts(lengths):
        last = groups[size - 1][1]
        if is_card_number(text[first:last].translate(_NO_SEPARATORS)):
            has_boundaries = _has_card_boundaries(text, first, last) and not _is_in_table(
                text, first, last
            )
            return size if has_boundaries else 0
    return 0


@lru_cache(maxsize=1_000)
def _possible_group_counts(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Return the possible numbers of groups of a card, for groups with these lengths."""
    return tuple(len(shape) for shape in _PRINTED_GROUPS if lengths[: len(shape)] == shape)


def _is_in_table(text: str, start: int, end: int) -> bool:
    """Return whether groups of four digits count up, or are next to hexadecimal ones."""
    if end - start != 19:
        return False
    try:
        numbers = [int(text[at : at + 4]) for at in range(start, end, 5)]
    except ValueError:
        return False  # in groups of other lengths
    if all(1 <= after - before <= 99 for before, after in pairwise(numbers)):
        return True
    before = _HEX_BEFORE.search(text, max(0, start - 6), start)
    neighbour = before or _HEX_AFTER.match(text, end)
    # A group of letters only, such as "face", is a word.
    return neighbour is not None and not (
        neighbour.group(1).isdigit() or neighbour.group(1).isalpha()
    )


_DOUBLED = bytes.maketrans(b"0123456789", bytes([0, 2, 4, 6, 8, 1, 3, 5, 7, 9]))
_PLAIN = bytes.maketrans(b"0123456789", bytes(range(10)))


def is_card_number(digits: str) -> bool:
    """Return whether digits have a network's prefix and length, and a valid Luhn check digit.

    Luhn (ISO/IEC 7812-1, annex B): every second digit from the right is doubled, minus 9 if it is
    above 9; the sum of all must be a multiple of ten.
    """
    if len(digits) not in _CARD_LENGTHS.get(digits[:4], ()):
        return False
    raw = digits.encode()
    total = sum(raw[-1::-2].translate(_PLAIN)) + sum(raw[-2::-2].translate(_DOUBLED))
    return total % 10 == 0


def _has_card_boundaries(text: str, start: int, end: int) -> bool:
    before = text[start - 1] if start else " "
    after = text[end] if end < len(text) else " "
    if before.isspace() and after.isspace():
        return True
    if is_word_character(before) or before in "$€£¥+/\\" or is_word_character(after):
        return False
    if before in ".-" and start > 1 and is_word_character(text[start - 2]):
        return False
    return not (after in ".-" and end + 1 < len(text) and is_word_character(text[end + 1]))
