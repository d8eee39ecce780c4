"""Personal data and secrets, taken out of answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

from validation.findings import Removal
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

KINDS = ("card", "iban", "email", "phone", "key")
_RULES = {kind: (f"pii_{kind}", f"[{kind}]") for kind in KINDS}

# What is taken out may free what is beside it. This often the rest is looked at again; real text
# needs it twice, the second time to see that nothing is left.
_MAX_ROUNDS = 8


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
        page = PiiText(text)
        for _ in range(_MAX_ROUNDS):
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
        pieces: list[str] = []
        removals: list[Removal] = []
        at = 0
        for start, end, kind in found:
            rule, name = _RULES[kind]
            pieces += (text[at:start], name)
            removals.append(Removal(rule, start, end, name))
            at = end
        pieces.append(text[at:])
        return "".join(pieces), tuple(removals)


# Keys and secrets: a known beginning, then at least as many characters as the real ones have.
_KEY = compile_pattern(
    r"\b(?:"
    + "|".join(
        (
            r"sk-[A-Za-z0-9_-]{20,}",  # OpenAI and those who took the shape over
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


def _find_keys(page: PiiText) -> Iterator[Span]:
    for start, end in page.spans(_KEY):
        key = page.text[start:end]
        # "sk-your-key-goes-here-123" and "ghp_xxxxxxxx" are no keys.
        if key.startswith("sk-") and not (
            _SOLID.search(key, 3) and any(char.isdigit() for char in key)
        ):
            continue
        if len(set(key[-12:])) > 3:
            yield start, end


def _letter_ranges() -> str:
    """Return the letters that addresses are written in, as ranges for `re`, which has no scripts.

    Later alphabets than the Basic Multilingual Plane's are for scholars.
    """
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x10000)]))
    spans = PiiText(every).spans(compile_pattern(r"[\p{Latin}\p{Greek}\p{Cyrillic}]+"))
    return "".join(f"{every[start]}-{every[end - 1]}" for start, end in spans)


_LETTER = _letter_ranges()
# An @ and what stands behind it: `re` jumps from one to the next.
_AT_DOMAIN = re.compile(
    rf"@(?:[{_LETTER}0-9](?:[{_LETTER}0-9-]*[{_LETTER}0-9])?\.)+"
    rf"(xn--[a-z0-9-]{{2,59}}|[{_LETTER}]{{2,24}})"
)
# What stands before it, from right to left; and what of that an address does not begin with.
_ATOM = rf"[{_LETTER}0-9_%+'-]+"
# Not a possessive group: Python before 3.11.5 matches those wrongly (CPython issue 106052).
_REVERSED_LOCAL_PART = re.compile(rf"{_ATOM}(?:\.{_ATOM})*")
_NOT_FIRST_CHARS = "%'-."
# Names of systemd's units, of images for dense screens and of other files; those that are
# countries as well only where they have no second level.
_NOT_TOP_LEVEL_DOMAINS = frozenset(
    "service socket timer target mount slice path scope device png jpg jpeg gif svg webp pdf txt "
    "json yaml toml html css js ts cpp tar gz".split()
)
_NOT_DOMAIN = re.compile(r"[^.]+\.py|openssh\.com|libssh\.org", re.IGNORECASE)
_AMBIGUOUS_TOP_LEVEL_DOMAINS = frozenset({"py", "com", "org"})


def _find_emails(page: PiiText) -> Iterator[Span]:
    """Yield addresses (RFC 5322 without quotes and comments; RFC 6531 for other alphabets)."""
    text, free = page.text, 0
    for match in _AT_DOMAIN.finditer(text):
        at, end = match.span()
        # No character is read twice, for there is no @ in what is read.
        low = max(free, text.rfind("@", 0, at) + 1)
        local = _REVERSED_LOCAL_PART.match(text[low:at][::-1])
        start = at - len(text[at - local.end() : at].lstrip(_NOT_FIRST_CHARS)) if local else at
        if start == at:
            continue
        free = end
        # In "ssh://git@host" and "git@host:some/path" it is the user of a machine, after "://name:"
        # the password, in "a@b.dot(c)" a product. A local part has 64 characters at most.
        if at - start > 64 or end - at > 254:
            continue
        top_level = match.group(1).lower()
        if top_level in _NOT_TOP_LEVEL_DOMAINS:
            continue
        # The names of SSH's algorithms among them.
        if top_level in _AMBIGUOUS_TOP_LEVEL_DOMAINS and _NOT_DOMAIN.fullmatch(text, at + 1, end):
            continue
        behind = text[end : end + 1]
        if behind == "@" or (behind and is_word_character(behind)):
            continue
        if behind in _BEFORE_PATH and _PATH.match(text, end):
            continue
        if not _is_url_user(text, start):
            yield start, end


_USER = re.compile(r"://(?:[^\s/@:]*:)?\Z")
_PATH = re.compile(r":(?:[^\s:@/~]{0,80}/|~)|\(")
_BEFORE_PATH = frozenset(":(")


def _is_url_user(text: str, start: int) -> bool:
    """Whether what begins here is the user or the password in a URL."""
    if not start or text[start - 1] not in "/:":
        return False
    return bool(_USER.search(text, max(0, start - 80), start))


_PHONE = re.compile(digit_run(f"()./{SEPARATORS}", most=3, least=7))


def _find_phones(page: PiiText) -> Iterator[Span]:
    text = page.text
    for match in _PHONE.finditer(text):
        start, end = match.span()
        for sign in "(+(" if start and text[start - 1] in "(+" else "":
            start -= text[start - 1 : start] == sign
        yield from find_phone_numbers(text, start, end)


# In this order: what has the clearest shape first.
_FINDERS: dict[str, Callable[[PiiText], Iterator[Span]]] = {
    "key": _find_keys,
    "email": _find_emails,
    "iban": find_ibans,
    "card": find_cards,
    "phone": _find_phones,
}
