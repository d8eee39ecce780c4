"""Any data URL is refused with a sentence or decoded to exactly the bytes of its file."""

from __future__ import annotations

import base64
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handler.errors import InvalidRequest
from handler.input.images import MAX_IMAGE_PIXELS, read_image
from tests.unit.handler.input.images import data_url, gif_header, jpeg_header, png_header

SIDES = st.integers(1, 2**16 - 1)
HEADERS = st.sampled_from([png_header, gif_header, jpeg_header])
BEGINNINGS = st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\xff\xd8\xff"])


@given(HEADERS, SIDES, SIDES, st.binary(max_size=50))
def test_size_in_the_header_decides(
    build_header: object, width: int, height: int, rest: bytes
) -> None:
    assert callable(build_header)
    content = build_header(width, height) + rest
    is_allowed = width * height <= MAX_IMAGE_PIXELS and max(width, height) <= 16_384
    if is_allowed:
        assert base64.b64decode(read_image(data_url(content), "url", 0).data) == content
    else:
        with pytest.raises(InvalidRequest, match=f"got {width} x {height}$"):
            read_image(data_url(content), "url", 0)


@given(BEGINNINGS, st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(beginning: bytes, rest: bytes) -> None:
    with suppress(InvalidRequest):
        read_image(data_url(beginning + rest), "url", 0)


@given(st.text() | st.text().map("data:image/png;base64,".__add__))
def test_any_text_is_read_or_refused(url: str) -> None:
    with suppress(InvalidRequest):
        read_image(url, "url", 0)
