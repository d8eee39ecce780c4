import struct

import pytest

from engine.hosts.frames import MAX_FRAME_BYTES, build_decoder, encode


def test_message_is_its_length_and_its_json() -> None:
    assert encode({"run": 1}) == b'\x00\x00\x00\x09{"run":1}'


def test_several_messages_in_one_read() -> None:
    assert list(build_decoder().feed(encode(1) + encode([2]) + encode("😀"))) == [1, [2], "😀"]


def test_too_large_length_is_refused_immediately() -> None:
    with pytest.raises(ValueError, match="cannot be right"):
        list(build_decoder().feed(struct.pack(">I", MAX_FRAME_BYTES + 1)))


def test_bytes_that_are_no_json_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected|JSON"):
        list(build_decoder().feed(struct.pack(">I", 3) + b"{{{"))


def test_value_without_json_form_is_refused() -> None:
    with pytest.raises(TypeError):
        encode({"prompt": "\ud800"})


def test_message_whose_reader_raised_is_not_delivered_again() -> None:
    decoder = build_decoder()
    # A reader that raises leaves an iteration that is never continued.
    assert next(iter(decoder.feed(encode(1) + encode(2)))) == 1
    assert list(decoder.feed(encode(3))) == [2, 3]
