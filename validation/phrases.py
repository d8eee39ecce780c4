"""Words and phrases as literals: whole words, any case, with a star for a word's ending."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from validation.linear_pattern import SPACE, WORD, WORD_END, WORD_START, LinearPattern, literal

# Some words of one sentence.
_GAP = rf"(?:[^{SPACE}?!]+[{SPACE}]+){{0,8}}"


class Phrases:
    """Finds any of several phrases in a text, in linear time.

    A phrase is literal but for three things: a star at a word's end stands for the rest of the word
    ("negotiat*"), a space for any white space, and an ellipsis between words for up to eight others
    ("how much do … earn").
    """

    __slots__ = ("_any", "phrases")

    def __init__(self, phrases: Sequence[str]) -> None:
        self.phrases = tuple(phrases)
        self._any = (
            LinearPattern(_build_expression(phrase.lower() for phrase in phrases))
            if phrases
            else None
        )

    def __bool__(self) -> bool:
        return bool(self.phrases)

    def search(self, text: str) -> bool:
        """Whether any of them is in the text."""
        return self._any is not None and self._any.search(text.lower())


def _build_expression(phrases: Iterable[str]) -> str:
    """Return one expression, with what surrounds phrases in it once and not once for each."""
    groups: dict[tuple[str, str], list[str]] = {}
    for phrase in phrases:
        before = WORD_START if phrase[0].isalnum() else ""
        # Behind a star the rest of the word may be anything, so that there is nothing to look at.
        behind = WORD_END if phrase[-1].isalnum() else ""
        groups.setdefault((before, behind), []).append(_translate_phrase(phrase))
    return "|".join(
        f"{before}(?:{'|'.join(bodies)}){behind}" for (before, behind), bodies in groups.items()
    )


def _translate_phrase(phrase: str) -> str:
    *before, last = phrase.split()
    parts = [_GAP if part == "…" else f"{_translate_stars(part)}[{SPACE}]+" for part in before]
    return "".join(parts) + (_GAP if last == "…" else _translate_stars(last.rstrip("*")))


def _translate_stars(part: str) -> str:
    return f"[{WORD}]*".join(map(literal, part.split("*")))
