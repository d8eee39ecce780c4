"""Redaction of personal data and secrets in answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

from validation.issues import Removal
from validation.options.folded_text import fold_text
from validation.options.payment import find_cards, find_ibans
from validation.options.phones import find_phone_numbers
from validation.options.pii_text import (
    SEPARATORS,
    PiiText,
    Span,
    compile_pattern,
    digit_run,
    is_word_character,
)

KINDS = ("card", "iban", "email", "phone", "key", "ssn")
_RULES = {kind: (f"pii_{kind}", f"[{kind}]") for kind in KINDS}

# Masking a span may expose another one next to it, so the text is searched again. Real texts need
# two rounds, the second of which finds nothing.
_MAX_ROUNDS = 8


class PiiRedactor:
    """Replaces personal data and secrets of the kinds in `KINDS` by their kind in brackets.

    The search ignores how characters are written: digits of any script, full width, invisible
    characters in between, and JSON's escapes. Checksums are verified. Data without a checksum must
    have an unambiguous format, because losing version numbers or dates would make an answer
    useless. Candidates are found in linear time, and each is checked in bounded time. Redacting a
    redacted text changes nothing.

    Raises:
        ValueError: an unknown kind; the message has the allowed ones.
    """

    def __init__(self, kinds: Collection[str] = KINDS) -> None:
        unknown = [kind for kind in kinds if kind not in KINDS]
        if unknown:
            raise ValueError(f"There is no kind {unknown[0]!r:.40}, only {', '.join(KINDS)}.")
        self.kinds = tuple(kind for kind in KINDS if kind in kinds)

    def redact(self, text: str) -> tuple[str, tuple[Removal, ...]]:
        """Return the redacted text, and the removals in order."""
        spans_by_kind: list[tuple[int, int, str]] = []
        folded = fold_text(text)
        text_view = PiiText(folded.text)
        for _ in range(_MAX_ROUNDS):
            count_before = len(spans_by_kind)
            for kind, find in _FINDERS.items():
                if kind in self.kinds:
                    spans = sorted(find(text_view))
                    if spans:
                        spans_by_kind += [(*folded.original_span(*span), kind) for span in spans]
                        text_view = text_view.mask(spans)
            if len(spans_by_kind) == count_before:
                break
        if not spans_by_kind:
            return text, ()
        spans_by_kind.sort()
        parts: list[str] = []
        removals: list[Removal] = []
        at = 0
        for start, end, kind in spans_by_kind:
            rule, name = _RULES[kind]
            parts += (text[at:start], name)
            removals.append(Removal(rule, start, end, name))
            at = end
        parts.append(text[at:])
        return "".join(parts), tuple(removals)


# Keys and secrets: a known prefix, then at least as many characters as real keys have.
_KEY = compile_pattern(
    r"\b(?:"
    + "|".join(
        (
            r"sk-[A-Za-z0-9_-]{20,}",  # OpenAI, and services with the same format
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
            # An AWS secret access key has no prefix; the name of its setting is before it.
            r"(?i:aws_?secret_?(?:access_?)?key)[\"']?\s{0,3}[:=]\s{0,3}[\"']?[A-Za-z0-9/+]{40}\b",
            # A JSON Web Token: two JSON objects and a signature, each in base64url (RFC 7515).
            r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}",
        )
    )
    # PEM (RFC 7468) with line feeds or escaped ones, up to its last line or as far as it matches.
    + r")|-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?:\s|\\[nr])*[A-Za-z-]{1,30}: [A-Za-z0-9,./() -]{0,80})*"
    r"(?:\s|\\[nr])*[A-Za-z0-9+/=]{20,}(?:(?:\s|\\[nr])+[A-Za-z0-9+/=]{16,})*"
    r"(?:(?:(?:\s|\\[nr])+[A-Za-z0-9+/=]{1,15}){0,2}(?:\s|\\[nr])*"
    r"-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----)?"
)
_AWS_SECRET_CHARS = 40
_SOLID = re.compile(r"[A-Za-z0-9]{16,}")


def _find_keys(text_view: PiiText) -> Iterator[Span]:
    for start, end in text_view.spans(_KEY):
        key = text_view.text[start:end]
        if key[:3].lower() == "aws":
            start, key = end - _AWS_SECRET_CHARS, key[-_AWS_SECRET_CHARS:]
        # "sk-your-key-goes-here-123" and "ghp_xxxxxxxx" are not keys.
        if key.startswith("sk-") and not (
            _SOLID.search(key, 3) and any(char.isdigit() for char in key)
        ):
            continue
        if len(set(key[-12:])) > 3:
            yield start, end


def _letter_ranges() -> str:
    """Return the letters that addresses are written in, as ranges for `re`, which has no scripts.

    Only the Basic Multilingual Plane is used: other planes have only historic alphabets.
    """
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x10000)]))
    spans = PiiText(every).spans(compile_pattern(r"[\p{Latin}\p{Greek}\p{Cyrillic}]+"))
    return "".join(f"{every[start]}-{every[end - 1]}" for start, end in spans)


_LETTER = _letter_ranges()
# An @ and the domain after it. It starts with the @, which `re` searches quickly.
_AT_DOMAIN = re.compile(
    rf"@(?:[{_LETTER}0-9](?:[{_LETTER}0-9-]*[{_LETTER}0-9])?\.)+"
    rf"(xn--[a-z0-9-]{{2,59}}|[{_LETTER}]{{2,24}})"
)
# The local part before the @, reversed, and the characters that an address does not start with.
_ATOM = rf"[{_LETTER}0-9_%+'-]+"
# Not a possessive group: Python before 3.11.5 matches them wrongly (CPython issue 106052).
_REVERSED_LOCAL_PART = re.compile(rf"{_ATOM}(?:\.{_ATOM})*")
_NOT_FIRST_CHARS = "%'-."
# Suffixes of names with an @ that are not addresses: systemd units, images for high-density screens
# and other files. For extensions that are also country codes, see _NOT_DOMAIN.
_NOT_TOP_LEVEL_DOMAINS = frozenset(
    "service socket timer target mount slice path scope device png jpg jpeg gif svg webp pdf txt "
    "json yaml toml html css js ts cpp tar gz".split()
)
_NOT_DOMAIN = re.compile(r"[^.]+\.py|openssh\.com|libssh\.org", re.IGNORECASE)
_AMBIGUOUS_TOP_LEVEL_DOMAINS = frozenset({"py", "com", "org"})


def _find_emails(text_view: PiiText) -> Iterator[Span]:
    """Yield the spans of addresses: RFC 5322 without quotes and comments, with RFC 6531 letters."""
    text, end_of_last = text_view.text, 0
    for match in _AT_DOMAIN.finditer(text):
        at, end = match.span()
        # The search stops at the previous @, so no character is read twice.
        search_start = max(end_of_last, text.rfind("@", 0, at) + 1)
        start = _find_local_start(text, search_start, at)
        if start == at:
            continue
        end_of_last = end
        if at - start > _MAX_LOCAL_CHARS or end - at > _MAX_DOMAIN_CHARS or _is_file_name(match):
            continue
        if text[start] == "_" and _CLOSING_EMPHASIS.match(text, end):
            start = at - len(text[start:at].lstrip("_"))
        elif _continues(text, end):
            continue
        if not _is_url_user(text, start):
            yield start, end


# Markdown's emphasis, such as "_bob@example.com_".
_CLOSING_EMPHASIS = re.compile(r"_+(?!\w)")
# With the @.
_MAX_DOMAIN_CHARS = 254
_MAX_LOCAL_CHARS = 64
# RFC 5322's quoted local part, whose quotes are escaped in JSON.
_QUOTED_END = re.compile(r'(\\?)"\Z')


def _find_local_start(text: str, search_start: int, at: int) -> int:
    """Return where the local part before an @ begins; the @ itself without one."""
    local = _REVERSED_LOCAL_PART.match(text[search_start:at][::-1])
    start = at - len(text[at - local.end() : at].lstrip(_NOT_FIRST_CHARS)) if local else at
    return _find_quoted_start(text, search_start, at) if start == at else start


def _find_quoted_start(text: str, search_start: int, at: int) -> int:
    """Return where a quoted local part begins that ends before the @; the @ itself without one."""
    closing = _QUOTED_END.search(text, max(search_start, at - 2), at)
    if closing is None:
        return at
    quote = closing.group()
    first = max(search_start, at - _MAX_LOCAL_CHARS - len(quote))
    start = text.rfind(quote, first, closing.start())
    name = text[start + len(quote) : closing.start()]
    return start if start >= 0 and name.strip() and "\n" not in name else at


def _is_file_name(domain: re.Match[str]) -> bool:
    """Return whether what follows an @ is no domain, but for example a name of an SSH algorithm."""
    top_level = domain.group(1).lower()
    if top_level in _NOT_TOP_LEVEL_DOMAINS:
        return True
    if top_level not in _AMBIGUOUS_TOP_LEVEL_DOMAINS:
        return False
    return bool(_NOT_DOMAIN.fullmatch(domain.string, domain.start() + 1, domain.end()))


def _continues(text: str, end: int) -> bool:
    """Return whether more than an address is here.

    That is "git@host:some/path" or a matrix product in "a@b.dot(c)".
    """
    after = text[end : end + 1]
    if after in _BEFORE_PATH:
        return bool(_PATH.match(text, end))
    return after == "@" or (after != "" and is_word_character(after))


_USER = re.compile(r"://(?:[^\s/@:]*:)?\Z")
_PATH = re.compile(r":(?:[^\s:@/~]{0,80}/|~)|\(")
_BEFORE_PATH = frozenset(":(")


def _is_url_user(text: str, start: int) -> bool:
    """Return whether a URL's user or password starts here, as in "ssh://git@host"."""
    if not start or text[start - 1] not in "/:":
        return False
    return bool(_USER.search(text, max(0, start - 80), start))


_PHONE = re.compile(digit_run(f"()./{SEPARATORS}", max_separators=3, min_digits=7))


def _find_phones(text_view: PiiText) -> Iterator[Span]:
    text = text_view.text
    for match in _PHONE.finditer(text):
        start, end = match.span()
        for sign in "(+(" if start and text[start - 1] in "(+" else "":
            start -= text[start - 1 : start] == sign
        yield from find_phone_numbers(text, start, end)


# Area numbers 000, 666 and 900 to 999, group 00 and serial 0000 are never issued (20 CFR 422.103).
_SSN = re.compile(r"(?!000|666|9)[0-9]{3}-(?!00)[0-9]{2}-(?!0000)[0-9]{4}")
_EXCLUDED_NEIGHBOURS = "-./+=$€£#"


def _find_ssns(text_view: PiiText) -> Iterator[Span]:
    text = text_view.text
    for match in _SSN.finditer(text):
        start, end = match.span()
        before, after = text[start - 1 : start], text[end : end + 1]
        if before and (is_word_character(before) or before in _EXCLUDED_NEIGHBOURS):
            continue
        if after in tuple("-./+") and text[end + 1 : end + 2].isalnum():
            continue
        if not (after and is_word_character(after)):
            yield start, end


# In the order of the searches: the most distinctive formats first.
_FINDERS: dict[str, Callable[[PiiText], Iterator[Span]]] = {
    "key": _find_keys,
    "email": _find_emails,
    "iban": find_ibans,
    "card": find_cards,
    "ssn": _find_ssns,
    "phone": _find_phones,
}
