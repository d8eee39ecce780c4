"""Personal data and secrets, taken out of answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from itertools import islice, pairwise
from typing import Any

import re2  # type: ignore[import-untyped]

from validation.findings import Removal
from validation.options.phones import joins, telephone_numbers

KINDS = ("card", "iban", "email", "phone", "key")

# What is taken out may free what is beside it. This often the rest is looked at again; real text
# needs it twice, the second time to see that nothing is left.
_ROUNDS = 8
# Stands for what was taken out: like the brackets of a replacement, no part of any kind.
_GONE = "["

Span = tuple[int, int]


class PiiRedactor:
    """Replaces cards, IBANs, e-mail addresses, telephone numbers and keys by their kind.

    What has a checksum is checked, what has none must have a shape that nothing else has: an answer
    that loses its version numbers or dates is worse than none. Candidates are found by RE2, in time
    linear in the text, and judged one by one in bounded time. Redacting what is redacted changes
    nothing.

    Raises:
        ValueError: an unknown kind; the sentence names those there are.
    """

    def __init__(self, kinds: Collection[str] = KINDS) -> None:
        unknown = [kind for kind in kinds if kind not in KINDS]
        if unknown:
            raise ValueError(f"There is no kind {unknown[0]!r:.40}, only {', '.join(KINDS)}.")
        self.kinds = tuple(kind for kind in KINDS if kind in kinds)

    def redact(self, text: str) -> tuple[str, tuple[Removal, ...]]:
        """Return a text without such data, and what stood where in it."""
        found: list[tuple[int, int, str]] = []
        page = _Page(text)
        for _ in range(_ROUNDS):
            before = len(found)
            for kind, find in _FINDERS.items():
                if kind in self.kinds:
                    spans = list(find(page))
                    if spans:
                        found += [(start, end, kind) for start, end in spans]
                        page = page.without(spans)
            if len(found) == before:
                break
        if not found:
            return text, ()
        found.sort()
        pieces, at = [], 0
        for start, end, kind in found:
            pieces += [text[at:start], f"[{kind}]"]
            at = end
        pieces.append(text[at:])
        removals = (Removal(f"pii_{kind}", start, end, f"[{kind}]") for start, end, kind in found)
        return "".join(pieces), tuple(removals)


class _Page:
    """A text and its bytes; RE2 matches bytes, and counting characters for each match is slow."""

    def __init__(self, text: str) -> None:
        self.text = text
        # Half of a surrogate pair becomes a question mark: one character for one.
        self._raw = text.encode("utf-8", "replace")

    def spans(self, pattern: Any) -> Iterator[Span]:
        """Yield where an RE2 pattern matches, in characters."""
        if len(self._raw) == len(self.text):
            for match in pattern.finditer(self._raw):
                yield match.span()
            return
        chars = bytes_ = 0
        for match in pattern.finditer(self._raw):
            start, end = match.span()
            first = chars + len(self._raw[bytes_:start].decode())
            chars, bytes_ = first + len(self._raw[start:end].decode()), end
            yield first, chars

    def without(self, spans: list[Span]) -> _Page:
        """Return the page with something taken out, and all else where it was."""
        pieces, at = [], 0
        for start, end in spans:
            pieces += [self.text[at:start], _GONE * (end - start)]
            at = end
        return _Page("".join([*pieces, self.text[at:]]))


def _compile(pattern: str) -> Any:
    return re2.compile(pattern.encode())


# Keys and secrets: a known beginning, then at least as many characters as the real ones have.
_KEY = _compile(
    r"\b(?:"
    + "|".join(
        (
            r"sk-[A-Za-z0-9_-]{20,}",  # OpenAI, Anthropic, OpenRouter, DeepSeek
            r"(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,}",  # Stripe
            r"whsec_[A-Za-z0-9+/=]{24,}",
            r"gh[pousr]_[A-Za-z0-9]{36,}",  # GitHub
            r"github_pat_[A-Za-z0-9_]{22,}",
            r"glpat-[A-Za-z0-9_-]{20,}",  # GitLab
            r"(?:AKIA|ASIA)[A-Z0-9]{16}\b",  # AWS access key ids
            r"AIza[A-Za-z0-9_-]{35,}",  # Google
            r"GOCSPX-[A-Za-z0-9_-]{20,}",
            r"ya29\.[A-Za-z0-9_-]{20,}",
            r"xox[abeoprs]-[A-Za-z0-9-]{10,}",  # Slack
            r"xapp-[0-9]-[A-Za-z0-9-]{10,}",
            r"rpa_[A-Za-z0-9]{20,}",  # RunPod
            r"hf_[A-Za-z0-9]{30,}",  # Hugging Face
            r"npm_[A-Za-z0-9]{36,}",
            r"pypi-AgE[A-Za-z0-9_-]{40,}",
            r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",  # SendGrid
            r"dop_v1_[a-f0-9]{64}",  # DigitalOcean
            r"hvs\.[A-Za-z0-9_-]{24,}",  # Vault
            r"gsk_[A-Za-z0-9]{40,}",  # Groq
            r"xai-[A-Za-z0-9]{60,}",
            r"nvapi-[A-Za-z0-9_-]{40,}",
            r"r8_[A-Za-z0-9]{36,}",  # Replicate
            r"shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32,}",  # Shopify
            r"[0-9]{8,10}:AA[A-Za-z0-9_-]{33,}",  # Telegram
            r"AGE-SECRET-KEY-1[A-Z0-9]{50,}",
            # A JSON Web Token: two JSON objects and a signature, each in base64url (RFC 7515).
            r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}",
        )
    )
    # PEM (RFC 7468), with line ends as they are or escaped, to its last line or as far as it goes.
    + r")|-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?:\s|\\[nr])*[A-Za-z-]{1,30}: [A-Za-z0-9,./() -]{0,80})*"
    r"(?:\s|\\[nr])*[A-Za-z0-9+/=]{20,}(?:(?:\s|\\[nr])+[A-Za-z0-9+/=]{16,})*"
    r"(?:(?:(?:\s|\\[nr])+[A-Za-z0-9+/=]{1,15}){0,2}(?:\s|\\[nr])*"
    r"-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----)?"
)
_SOLID = re.compile(r"[A-Za-z0-9]{16,}")


def _keys(page: _Page) -> Iterator[Span]:
    for start, end in page.spans(_KEY):
        key = page.text[start:end]
        # "sk-your-key-goes-here-123" and "ghp_xxxxxxxx" are no keys.
        if key.startswith("sk-") and not (
            _SOLID.search(key, 3) and any(char.isdigit() for char in key)
        ):
            continue
        if len(set(key[-12:])) > 3:
            yield start, end


_LETTER = r"\p{Latin}\p{Greek}\p{Cyrillic}"
_ATOM = rf"[{_LETTER}0-9_+][{_LETTER}0-9_%+'-]*"
_EMAIL = _compile(
    rf"{_ATOM}(?:\.[{_LETTER}0-9_%+'-]+)*"
    rf"@(?:[{_LETTER}0-9](?:[{_LETTER}0-9-]*[{_LETTER}0-9])?\.)+"
    rf"(?:xn--[a-z0-9-]{{2,59}}|[{_LETTER}]{{2,24}})"
)
# Names of systemd's units, of images for dense screens and of other files; those that are
# countries as well only where they have no second level.
_NO_TOP_LEVEL = frozenset(
    "service socket timer target mount slice path scope device png jpg jpeg gif svg webp pdf txt "
    "json yaml toml html css js ts cpp tar gz".split()
)
_NO_DOMAIN = re.compile(r"[^.]+\.py|openssh\.com|libssh\.org", re.IGNORECASE)


def _emails(page: _Page) -> Iterator[Span]:
    """Yield addresses (RFC 5322 without quotes and comments; RFC 6531 for other alphabets)."""
    text = page.text
    for start, end in page.spans(_EMAIL):
        at = text.rindex("@", start, end)
        # In "ssh://git@host" and "git@host:some/path" it is the user of a machine, after "://name:"
        # the password, in "a@b.dot(c)" a product. A local part has 64 characters at most.
        if at - start > 64 or end - at > 254:
            continue
        if text[text.rindex(".", at, end) + 1 : end].lower() in _NO_TOP_LEVEL:
            continue
        if _NO_DOMAIN.fullmatch(text, at + 1, end):  # the names of SSH's algorithms among them
            continue
        if end < len(text) and (joins(text[end]) or text[end] == "@"):
            continue
        if not _is_user(text, start) and not _PATH.match(text, end):
            yield start, end


_USER = re.compile(r"://(?:[^\s/@:]*:)?\Z")
_PATH = re.compile(r":(?:[^\s:@/~]{0,80}/|~)|\(")


def _is_user(text: str, start: int) -> bool:
    """Whether what begins here is the user or the password in a URL."""
    if not start or text[start - 1] not in "/:":
        return False
    return bool(_USER.search(text, max(0, start - 80), start))


# How long the IBANs of a country are: SWIFT's registry (ISO 13616).
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
_SEPARATORS = " \u00a0\u2009\u202f\u2010\u2011\u2013-"
_IBAN = _compile(r"\b[A-Za-z]{2}[0-9]{2}")
# In groups only in capitals: words that follow each other would be read as one.
_IBAN_SHAPES = {
    length: re.compile(
        rf"(?:[A-Z0-9][{_SEPARATORS}]?){{{length - 1}}}[A-Z0-9]|[A-Za-z0-9]{{{length}}}"
    )
    for length in set(_IBAN_LENGTHS.values())
}
_TO_NUMBERS = str.maketrans({chr(55 + number): str(number) for number in range(10, 36)})
_NO_SEPARATORS = {ord(char): None for char in _SEPARATORS}


def _ibans(page: _Page) -> Iterator[Span]:
    text, free = page.text, 0
    for start, _ in page.spans(_IBAN):
        length = _IBAN_LENGTHS.get(text[start : start + 2].upper())
        if length is None or start < free or (start and joins(text[start - 1])):
            continue
        match = _IBAN_SHAPES[length].match(text, start)
        if match is None or text[match.end() : match.end() + 1].isalnum():
            continue
        if is_iban(match.group()):
            free = match.end()
            yield start, free


def is_iban(text: str) -> bool:
    """Whether the check digits are right: with the first four characters put last and letters read
    as 10 to 35, the number leaves 1 when divided by 97 (ISO 7064, MOD 97-10).
    """
    bare = text.translate(_NO_SEPARATORS).upper()
    return int((bare[4:] + bare[:4]).translate(_TO_NUMBERS)) % 97 == 1


# First four digits, from and to, and how many there are in all: the networks' public ranges
# (ISO/IEC 7812 issuer identification numbers).
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

_CARD = _compile(rf"[0-9](?:[{_SEPARATORS}]?[0-9]){{12,}}")
# How cards are printed.
_PRINTED = ((4, 4, 4, 4, 3), (4, 4, 4, 4), (4, 6, 5), (4, 6, 4), (6, 13), (16,), (15,), (14,))
_DIGITS = re.compile("[0-9]+")
_YEAR_OR_EXPIRY = re.compile(r"(?:19|20)[0-9]{2}|(?:0[1-9]|1[0-2])[2-4][0-9]")
_HEX = re.compile(r"[0-9A-Fa-f]{4,5}")


def _cards(page: _Page) -> Iterator[Span]:
    text = page.text
    for start, end in page.spans(_CARD):
        if end - start <= 19 + 18 and is_card(text[start:end].translate(_NO_SEPARATORS)):
            if _card_stands_alone(text, start, end) and not _in_table(text, start, end):
                yield start, end
        else:
            yield from _cards_among_numbers(text, start, end)


def _cards_among_numbers(text: str, start: int, end: int) -> list[Span]:
    """Return the cards of a run in which there are years, dates or short numbers beside them.

    Among other groups of four they are taken for a part of a table, as they then mostly are.
    """
    found: list[Span] = []
    others = 0
    groups: list[Span] = []
    pending = _DIGITS.finditer(text, start, end)
    while True:
        groups += [match.span() for match in islice(pending, 5 - len(groups))]
        if not groups:
            return found
        size = _card_size(text, groups)
        if size:
            found.append((groups[0][0], groups[size - 1][1]))
            others = 0
        else:
            size, others = 1, others + 1
            first, last = groups[0]
            if others > 3:
                return found
            if last - first == 4 and not _YEAR_OR_EXPIRY.fullmatch(text, first, last):
                return []
        del groups[:size]


def _card_size(text: str, groups: list[Span]) -> int:
    """Return how many groups the card that they begin with has, 0 if there is none."""
    lengths = tuple(last - first for first, last in groups)
    first = groups[0][0]
    if lengths[0] < 4 or text[first : first + 4] not in _CARD_LENGTHS:
        return 0
    for shape in _PRINTED:
        if lengths[: len(shape)] == shape:
            last = groups[len(shape) - 1][1]
            if is_card(text[first:last].translate(_NO_SEPARATORS)):
                alone = _card_stands_alone(text, first, last) and not _in_table(text, first, last)
                return len(shape) if alone else 0
    return 0


def _in_table(text: str, start: int, end: int) -> bool:
    """Whether groups of four count up, or stand beside hexadecimal ones."""
    if end - start != 19:
        return False
    numbers = [int(text[at : at + 4]) for at in range(start, end, 5)]
    if all(1 <= after - before <= 99 for before, after in pairwise(numbers)):
        return True
    beside = text[max(0, start - 6) : start].split(), text[end : end + 6].split()
    return any(_HEX.fullmatch(word) and not word.isdigit() for words in beside for word in words)


_DOUBLED = bytes.maketrans(b"0123456789", bytes([0, 2, 4, 6, 8, 1, 3, 5, 7, 9]))
_PLAIN = bytes.maketrans(b"0123456789", bytes(range(10)))


def is_card(digits: str) -> bool:
    """Whether a network gives out such a number and its last digit is right: every second digit
    from the right doubled, 9 taken off what is above, all adds up to a multiple of ten (Luhn;
    ISO/IEC 7812-1, annex B).
    """
    if len(digits) not in _CARD_LENGTHS.get(digits[:4], ()):
        return False
    raw = digits.encode()
    total = sum(raw[-1::-2].translate(_PLAIN)) + sum(raw[-2::-2].translate(_DOUBLED))
    return total % 10 == 0


def _card_stands_alone(text: str, start: int, end: int) -> bool:
    before = text[start - 1] if start else " "
    after = text[end] if end < len(text) else " "
    if joins(before) or before in "$€£¥+/\\" or joins(after):
        return False
    if before in ".-" and start > 1 and joins(text[start - 2]):
        return False
    return not (after in ".-" and end + 1 < len(text) and joins(text[end + 1]))


_PHONE = _compile(rf"\(?\+?\(?[0-9](?:[()./{_SEPARATORS}]{{0,3}}[0-9]){{6,}}")


def _phones(page: _Page) -> Iterator[Span]:
    for start, end in page.spans(_PHONE):
        yield from telephone_numbers(page.text, start, end)


# In this order: what has the clearest shape first.
_FINDERS: dict[str, Callable[[_Page], Iterator[Span]]] = {
    "key": _keys,
    "email": _emails,
    "iban": _ibans,
    "card": _cards,
    "phone": _phones,
}
