from __future__ import annotations

import pytest

from validation.options.folded_text import fold_text


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("plain text 123", "plain text 123"),
        ("\u0664\u0967\uff11\U0001d7d2", "4114"),
        ("\uff4a\uff4f\uff20\u3000", "jo@ "),
        ("a\u00ad\u200bb\ufeff", "ab"),
        ("\\u0040\\u00e9\\u0664", "@\u00e94"),
        ("\\\\u0040 \\\\\\u0040", "\\\\u0040 \\\\@"),
        ("\\u00ad\\ud83d", "\ud83d"),
        ("\u00b2 \u00bd 1\u00aa \u2160 \ufb01", "\u00b2 \u00bd 1\u00aa \u2160 \ufb01"),
        ("gr\u00fc\u00dfe \u0434\u0430", "gr\u00fc\u00dfe \u0434\u0430"),
        ("", ""),
    ],
)
def test_text_is_folded(text: str, folded: str) -> None:
    assert fold_text(text).text == folded


def test_span_refers_to_the_original_text_and_includes_inner_characters() -> None:
    text = "\u200ba\u200bb\\u0063\u200b d"
    folded = fold_text(text)
    assert folded.text == "abc d"
    assert [text[slice(*folded.original_span(i, i + 1))] for i in range(5)] == [
        *("a", "b", "\\u0063", " ", "d")
    ]
    assert text[slice(*folded.original_span(0, 3))] == "a\u200bb\\u0063"


def test_positions_are_unchanged_without_invisible_characters_and_escapes() -> None:
    folded = fold_text("\uff11\u0664 x")
    assert folded.original_span(1, 3) == (1, 3)
