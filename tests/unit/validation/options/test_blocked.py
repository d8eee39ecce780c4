"""Blocked terms in many forms, and words that only contain them."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validation.issues import Issue
from validation.options.blocked import Blocklist

TERM = Issue("blocked_term", "The request contains a word or phrase that is not allowed here.")
INTENT = Issue("blocked_intent", "Requests of this kind are not answered here.")


@pytest.mark.parametrize(
    ("term", "text"),
    [
        ("bomb", "bomb"),
        ("bomb", "How to build a bomb?"),
        ("bomb", "BOMB"),
        ("BOMB", "a bomb, please"),
        ("bomb", "the bomb's radius"),
        ("bomb", "bomb-making"),
        ("bomb", "_bomb_ and **bomb**"),
        ("bomb", "b\u200bomb"),
        ("bomb", "b\u200c\u200do\u2060m\ufeffb"),
        ("bomb", "bo\u00admb"),
        ("bomb", "b\ufe0fo\U000e0020mb"),
        ("bo\u200bmb", "bomb"),
        ("bomb", "ｂｏｍｂ"),
        ("bomb", "𝐛𝐨𝐦𝐛"),
        ("bomb", "ⓑⓞⓜⓑ"),
        ("bomb", "\ud800bomb\udfff"),
        ("bomb", "x\0bomb\0x"),
        (".net", "asp\0.net"),
        ("office", "oﬃce"),
        ("café", "cafe\u0301"),
        ("cafe\u0301", "CAFÉ"),
        ("straße", "STRASSE"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
        ("make a bomb", "make  a\n\tbomb"),
        ("make a bomb", "make\u00a0a\u3000bomb"),
        ("c++", "in c++."),
        ("c++", "C++"),
        ("c++", "(c++)"),
        ("c++", "c+++"),
        (".net", "use .NET now"),
        ("$$$", "for $$$!"),
        ("a.*b", "what is a.*b"),
        ("[x]", "an [x]"),
        ("(?i)x", "(?i)x"),
        ("-", "a - b"),
        ("бомба", "Как сделать БОМБА?"),
        ("炸弹", "如何制造炸弹的方法"),
        ("爆弾", "爆弾を作る"),
        ("폭탄", "폭탄을 만들다"),
        ("ระเบิด", "ทำระเบิดยังไง"),
        ("bomb", "制造bomb的方法"),
        ("कम", "बहुत कम है"),
        ("1234", "pin 1234."),
        ("b o m b", "b o m b"),
    ],
)
def test_term_is_blocked_in_any_form(term: str, text: str) -> None:
    assert Blocklist([term]).find_block(text, "general") == TERM
    assert Blocklist(["other", "more of it", term, "last"]).find_block(text, "general") == TERM


@pytest.mark.parametrize(
    ("term", "text"),
    [
        ("bomb", ""),
        ("bomb", "bombs"),
        ("bomb", "bombastic"),
        ("bomb", "carbomb"),
        ("bomb", "bomb2"),
        ("bomb", "bom b"),
        ("bomb", "bömb"),
        ("ass", "class assignment passes"),
        ("c++", "c+"),
        ("c++", "c"),
        ("c++", "c++11"),
        ("c++", "xc++"),
        ("c++", "c + +"),
        (".net", "asp.net"),
        (".net", "net"),
        ("a.*b", "axxb"),
        ("a.b", "a-b"),
        ("[x]", "x"),
        ("make a bomb", "make abomb"),
        ("make a bomb", "make a nice bomb"),
        ("make a bomb", "remake a bomb"),
        ("1234", "12345"),
        ("कम", "कमान"),
        ("$", "US$"),
        ("炸弹", "炸 弹"),
    ],
)
def test_term_is_not_blocked_within_other_words(term: str, text: str) -> None:
    assert Blocklist([term]).find_block(text, "general") is None


def test_overlapping_terms_are_blocked() -> None:
    blocks = Blocklist(["a b a c", "b a b", "a a"]).find_block
    for text in ("a b a b a c", "x a b a b", "b a a"):
        assert blocks(text, "general") == TERM
    assert blocks("a b a", "general") is None
    assert Blocklist(["a b c d", "b c"]).find_block("a b c e", "general") == TERM
    assert Blocklist(["a b c d", "b c"]).find_block("a b d", "general") is None


def test_intent_is_blocked() -> None:
    blocklist = Blocklist(["bomb"], {"salary_intelligence"})
    assert blocklist.find_block("What do nurses earn?", "salary_intelligence") == INTENT
    assert blocklist.find_block("What do nurses earn?", "general") is None
    assert blocklist.find_block("bomb", "general") == TERM
    assert Blocklist().find_block("bomb", "general") is None
    assert Blocklist([], []).find_block("bomb", "salary_intelligence") is None


def test_message_does_not_contain_the_term() -> None:
    for term in ("frobnicate", "salary"):
        issue = Blocklist([term], ["salary"]).find_block(f"please {term}", "general")
        assert issue is not None
        assert term not in issue.message


@pytest.mark.parametrize("term", ["", " ", "\n", "\u200b", "\ufeff\u00ad", "\0"])
def test_invisible_term_is_rejected(term: str) -> None:
    with pytest.raises(ValueError, match="must have something visible in it"):
        Blocklist(["bomb", term])


WORDS = st.sampled_from(["a", "b", "ab", "+", ".", "é", "炸", "\u200b", " ", "  ", "_", "\0"])


@given(st.lists(WORDS, min_size=1, max_size=3), st.lists(WORDS, max_size=12))
def test_term_between_spaces_is_always_blocked(term: list[str], around: list[str]) -> None:
    try:
        blocklist = Blocklist(["".join(term)])
    except ValueError:
        return
    text = "".join([*around, " ", *term, " ", *around])
    assert blocklist.find_block(text, "general") == TERM


@given(st.text(st.characters(exclude_categories=())), st.text(st.characters(exclude_categories=())))
def test_any_text_and_any_term(term: str, text: str) -> None:
    try:
        blocklist = Blocklist([term])
    except ValueError:
        return
    assert blocklist.find_block(text, "general") in (None, TERM)
    assert blocklist.find_block(term, "general") == TERM


DICE = random.Random(1)
LONG_TERM_LIST = [
    *(f"term{n} " + "".join(DICE.choices("abcdefg", k=20)) for n in range(250)),
    *("a " * n + "b" for n in range(1, 251)),
    *("." * n + "x" for n in range(1, 251)),
    *("x " + " ".join(DICE.choices("ab", k=25)) for _ in range(250)),
]
TEXTS = {
    "prose": "lorem ipsum dolor sit amet ",
    "letters": "a",
    "words": "a ",
    "signs": ".",
    "touching": "a.",
    "random": "".join(DICE.choices("abx ", k=10_000)),
    "marks": "\u0300\u0316",
    "invisible": "b\u200b",
    "ornaments": "\ufdfa",
    "mixed ornaments": "a\ufdfa",
    "ideographs": "炸",
    "umlauts": "é ",
    "capitals": "ẞİ",
}


@pytest.mark.long_except("mixed ornaments", "letters", "umlauts", "prose")
@pytest.mark.parametrize("piece", TEXTS.values(), ids=TEXTS)
def test_a_million_characters_and_a_thousand_terms_take_linear_time(piece: str) -> None:
    blocklist = Blocklist(LONG_TERM_LIST)
    text = (piece * (1_000_000 // len(piece) + 1))[:1_000_000]
    start = time.thread_time()
    blocklist.find_block(text, "general")
    assert time.thread_time() - start < 2.5
