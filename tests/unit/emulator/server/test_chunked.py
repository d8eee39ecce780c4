"""Chunked bodies: decoded however they are cut, and refused where they are malformed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.server.chunked import ChunkedBody, ChunkedError


def decode(data: bytes, piece_bytes: int = 1_000_000) -> tuple[bytes, bytes, bool]:
    """Return the content, what follows the body, and whether the body is complete."""
    body = ChunkedBody()
    content = b""
    for at in range(0, len(data), piece_bytes):
        decoded, rest = body.feed(data[at : at + piece_bytes])
        content += decoded
        if body.is_complete:
            return content, rest + data[at + piece_bytes :], True
    return content, b"", False


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), st.integers(1, 20))
def test_chunked_body_decodes_chunks_however_they_are_cut(
    chunks: list[bytes], piece_bytes: int
) -> None:
    data = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    assert decode(data + b"GET /", piece_bytes) == (b"".join(chunks), b"GET /", True)


@pytest.mark.parametrize(
    "data",
    [
        b"A\r\n0123456789\r\n0\r\n\r\n",
        b"00a\r\n0123456789\r\n000\r\n\r\n",
        b"a ;name=value\r\n0123456789\r\n0;last\r\n\r\n",
        b"a\r\n0123456789\r\n0\r\nTrailer: dropped\r\nOther: too\r\n\r\n",
    ],
)
def test_chunked_body_accepts_extensions_and_drops_trailers(data: bytes) -> None:
    assert decode(data) == (b"0123456789", b"", True)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\r\n", "hexadecimal"),
        (b"0x1\r\n", "hexadecimal"),
        (b"+1\r\n", "hexadecimal"),
        (b"1_0\r\n", "hexadecimal"),
        (b" 1\r\n", "hexadecimal"),
        (b"1" * 16 + b"\r\n", "hexadecimal"),
        (b"1;\x00\r\n", "control characters"),
        (b"1\n", "CRLF"),
        (b"1\r\nabc", "longer than its size"),
        (b"1\r\na\n", "longer than its size"),
        (b"1" + b" " * 2_000, "size line"),
        (b"0\r\nno colon\r\n", "name: value"),
        (b"0\r\na: \rb\r\n", "name: value"),
        (b"0\r\na: b\n", "CRLF"),
        (b"0\r\n" + b"a: b\r\n" * 2_000, "trailers are longer"),
    ],
    ids=lambda value: repr(value)[:20],
)
@pytest.mark.parametrize("piece_bytes", [1, 1_000_000])
def test_chunked_body_rejects_malformed_and_long_input(
    data: bytes, words: str, piece_bytes: int
) -> None:
    with pytest.raises(ChunkedError, match=words):
        decode(data, piece_bytes)
