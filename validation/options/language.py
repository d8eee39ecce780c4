"""The check of an answer's language."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from threading import Lock
from typing import Any

from validation.arrays import import_numpy
from validation.issues import Issue
from validation.options import MissingPart

# How much prose is read, and how many letters are needed for a reliable result.
MAX_CHARS = 4_000
MIN_LETTERS = 20
# An issue requires this probability of the detected language, and less than the second one for the
# expected language.
MIN_PROBABILITY = 0.6
MAX_EXPECTED_PROBABILITY = 0.2

# The ISO 639-1 codes that the model supports.
NAMES = {
    "af": "Afrikaans",
    "am": "Amharic",
    "an": "Aragonese",
    "ar": "Arabic",
    "as": "Assamese",
    "az": "Azerbaijani",
    "ba": "Bashkir",
    "be": "Belarusian",
    "bg": "Bulgarian",
    "bn": "Bengali",
    "br": "Breton",
    "bs": "Bosnian",
    "ca": "Catalan",
    "cs": "Czech",
    "cy": "Welsh",
    "da": "Danish",
    "de": "German",
    "dz": "Dzongkha",
    "el": "Greek",
    "en": "English",
    "eo": "Esperanto",
    "es": "Spanish",
    "et": "Estonian",
    "eu": "Basque",
    "fa": "Persian",
    "fi": "Finnish",
    "fo": "Faroese",
    "fr": "French",
    "fy": "Western Frisian",
    "ga": "Irish",
    "gd": "Scottish Gaelic",
    "gl": "Galician",
    "gu": "Gujarati",
    "ha": "Hausa",
    "he": "Hebrew",
    "hi": "Hindi",
    "hr": "Croatian",
    "ht": "Haitian Creole",
    "hu": "Hungarian",
    "hy": "Armenian",
    "id": "Indonesian",
    "ig": "Igbo",
    "is": "Icelandic",
    "it": "Italian",
    "ja": "Japanese",
    "jv": "Javanese",
    "ka": "Georgian",
    "kk": "Kazakh",
    "km": "Khmer",
    "kn": "Kannada",
    "ko": "Korean",
    "ku": "Kurdish",
    "ky": "Kyrgyz",
    "la": "Latin",
    "lb": "Luxembourgish",
    "lg": "Ganda",
    "ln": "Lingala",
    "lo": "Lao",
    "lt": "Lithuanian",
    "lv": "Latvian",
    "mg": "Malagasy",
    "mk": "Macedonian",
    "ml": "Malayalam",
    "mn": "Mongolian",
    "mr": "Marathi",
    "ms": "Malay",
    "mt": "Maltese",
    "my": "Burmese",
    "ne": "Nepali",
    "nl": "Dutch",
    "nn": "Norwegian Nynorsk",
    "no": "Norwegian",
    "oc": "Occitan",
    "om": "Oromo",
    "or": "Odia",
    "pa": "Punjabi",
    "pl": "Polish",
    "ps": "Pashto",
    "pt": "Portuguese",
    "qu": "Quechua",
    "ro": "Romanian",
    "ru": "Russian",
    "rw": "Kinyarwanda",
    "sa": "Sanskrit",
    "se": "Northern Sami",
    "si": "Sinhala",
    "sk": "Slovak",
    "sl": "Slovenian",
    "sn": "Shona",
    "so": "Somali",
    "sq": "Albanian",
    "sr": "Serbian",
    "st": "Southern Sotho",
    "sv": "Swedish",
    "sw": "Swahili",
    "ta": "Tamil",
    "te": "Telugu",
    "tg": "Tajik",
    "th": "Thai",
    "tk": "Turkmen",
    "tl": "Tagalog",
    "tr": "Turkish",
    "tt": "Tatar",
    "ug": "Uyghur",
    "uk": "Ukrainian",
    "ur": "Urdu",
    "uz": "Uzbek",
    "vi": "Vietnamese",
    "vo": "Volapük",
    "wa": "Walloon",
    "xh": "Xhosa",
    "yo": "Yoruba",
    "zh": "Chinese",
    "zu": "Zulu",
}
# The model has one label for both.
_ALIASES = {"nb": "no"}
# Languages that the model often confuses.
_SIMILAR_LANGUAGES = (
    {"bs", "hr", "sr"},
    {"id", "ms"},
    {"no", "nn", "da"},
    {"hi", "mr", "ne", "sa"},
    {"xh", "zu"},
)
# The model's label for text without a language.
_NO_LANGUAGE = "zxx"

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
# The expression starts with the line feed before the fence, which `re` searches quickly.
_CLOSING = {mark: re.compile(rf"\n {{0,3}}({mark}{{3,}})[^\S\n]*(?=\n|\Z)") for mark in "`~"}
_LINE = re.compile(r"[^\n]+")
_CODE_OR_LINK = re.compile(r"`[^`\n]*`|(?:https?|ftp)://\S+|www\.\S+")


class LanguageCheck:
    """Checks whether answers are in the expected language.

    Only the first few thousand characters are read, without code and links. There is no issue if
    the answer has too little prose, or if the languages are too similar to distinguish.

    Raises:
        ValueError: the ISO 639-1 code is unknown or unsupported.
        MissingPart: py3langid is not installed.
    """

    def __init__(self, expected: str) -> None:
        code = _ALIASES.get(expected.lower(), expected.lower())
        if code not in NAMES:
            raise ValueError(
                f"There is no language {expected!r:.40} to check for; use one of {len(NAMES)} "
                "ISO 639-1 codes, such as en, de, fr, es, pt, zh or ja."
            )
        self.expected = code
        self._accepted = {code}.union(*(close for close in _SIMILAR_LANGUAGES if code in close))
        if find_spec("py3langid") is None:
            raise MissingPart("Checking the language of answers", "py3langid")

    def preload(self) -> None:
        """Load the model, which takes most of a second, before the first answer needs it."""
        _get_model()

    def find_issues(self, text: str) -> tuple[Issue, ...]:
        """Return an issue if the answer is in another language."""
        prose = extract_prose(text)
        if sum(map(str.isalpha, prose)) < MIN_LETTERS:
            return ()
        ranking: list[tuple[str, float]] = _get_model().rank(prose)
        detected, probability = ranking[0]
        if detected == _NO_LANGUAGE or probability < MIN_PROBABILITY:
            return ()
        if (
            sum(
                language_probability
                for code, language_probability in ranking
                if code in self._accepted
            )
            >= MAX_EXPECTED_PROBABILITY
        ):
            return ()
        message = f"The answer is in {NAMES[detected]}, and {NAMES[self.expected]} was asked for."
        return (Issue("language", message),)


def extract_prose(text: str) -> str:
    """Return the first MAX_CHARS characters of a text without code and links."""
    parts: list[str] = []
    remaining_chars = MAX_CHARS
    for line in _lines_outside_fences(text):
        # Truncated links and code are still recognised by their beginning.
        prose = _CODE_OR_LINK.sub(" ", line[: 2 * MAX_CHARS])[:remaining_chars]
        parts.append(prose)
        remaining_chars -= len(prose)
        if remaining_chars <= 0:
            break
    return "\n".join(parts)


def _lines_outside_fences(text: str) -> Iterator[str]:
    """Yield the lines outside fenced blocks; several blank lines are yielded as one."""
    at = 0
    while line := _LINE.search(text, at):
        start, end = line.span()
        if start > at:
            yield ""
        opening = _FENCE.match(text, start, end)
        if opening is None:
            yield line.group()
            at = end + 1
        else:
            at = _find_block_end(text, end, opening.group(1)) + 1


def _find_block_end(text: str, start: int, fence: str) -> int:
    """Return the end of the line that closes a block, or of the text without such a line."""
    for closing in _CLOSING[fence[0]].finditer(text, start):
        if len(closing.group(1)) >= len(fence):
            return closing.end()
    return len(text)


_load_lock = Lock()


def _get_model() -> Any:
    """Return the model, loaded once. It is read-only afterwards, so any thread may use it."""
    with _load_lock:
        return _load_model()


@lru_cache(maxsize=1)
def _load_model() -> Any:
    # Import numpy first, so that it is limited to one thread.
    import_numpy()
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    model = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    logging.getLogger("py3langid").setLevel(logging.WARNING)
    # Without this, texts would be detected as dialects and small languages.
    model.set_languages([*NAMES, _NO_LANGUAGE])
    return model
