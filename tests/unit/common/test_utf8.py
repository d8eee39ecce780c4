"""R27: no half characters."""

import pytest

from common.utf8 import Utf8Decoder

TEXTS = {
    "emoji": "😀🎉🚀",
    "chinese": "你好，世界",
    "combining marks": "e\u0301a\u0308o\u0302\u0323",
    "joined family": "👩‍👩‍👧‍👦 and 🏳️‍🌈",
    "byte order mark inside": "a\ufeffb",
    "replacement character of the model's own": "so \ufffd it is",
    "every length": "a\u00e9\u20ac\U0001f600",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_split_at_every_byte_is_the_same_text(text: str) -> None:
    data = text.encode()
    for cut in range(len(data) + 1):
        decode = Utf8Decoder().decode
        parts = [decode(data[:cut]), decode(data[cut:])]
        assert "".join(parts) == text
        assert all(part in text for part in parts)


def test_single_bytes_are_decoded_to_complete_characters() -> None:
    decode = Utf8Decoder().decode
    parts = [decode(bytes([byte])) for byte in "é😀".encode()]
    assert parts == ["", "é", "", "", "", "😀"]


def test_incomplete_tail_is_dropped() -> None:
    decode = Utf8Decoder().decode
    assert decode("ok 😀".encode()[:-1]) == "ok "


def test_invalid_bytes_do_not_swallow_the_following_text() -> None:
    decode = Utf8Decoder().decode
    assert decode(b"a\xffb") == "a\ufffdb"
    assert decode(b"\xf0\x9f") == ""
    assert decode(b"then") == "\ufffdthen"
    assert decode(b"\xed\xa0\x80 x").endswith(" x")
    assert decode("😀".encode()) == "😀"
