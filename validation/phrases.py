"""Search for literal phrases: whole words, ignoring case, with a star for any word ending."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from validation.linear_pattern import SPACE, WORD, WORD_END, WORD_START, LinearPattern, literal

# Up to eight words of one sentence.
_GAP = rf"(?:[^{SPACE}?!]+[{SPACE}]+){{0,8}}"


class Phrases:
    """Finds any of several phrases in a text, in linear time.

    A phrase is literal with three exceptions: a star at the end of a word matches the rest of the
    word ("negotiat*"), a space matches any white space, and an ellipsis between words matches up to
    eight words ("how much do … earn").
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
        """Return whether any of the phrases is in the text."""
        return self._any is not None and self._any.search(text.lower())


def _build_expression(phrases: Iterable[str]) -> str:
    """Return one expression for all phrases, in which phrases with equal boundaries share them."""
    groups: dict[tuple[str, str], list[str]] = {}
    for phrase in phrases:
        before = WORD_START if phrase[0].isalnum() else ""
        # After a star there is no boundary, because the rest of the word may be anything.
        after = WORD_END if phrase[-1].isalnum() else ""
        groups.setdefault((before, after), []).append(_translate_phrase(phrase))
    return "|".join(
        f"{before}(?:{'|'.join(bodies)}){after}" for (before, after), bodies in groups.items()
    )


def _translate_phrase(phrase: str) -> str:
    *before, last = phrase.split()
    parts = [_GAP if part == "…" else f"{_translate_stars(part)}[{SPACE}]+" for part in before]
    return "".join(parts) + (_GAP if last == "…" else _translate_stars(last.rstrip("*")))


def _translate_stars(part: str) -> str:
    return f"[{WORD}]*".join(map(literal, part.split("*")))
