"""The console's picture in the documentation."""

from __future__ import annotations

import struct
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "console.png"
MAX_BYTES = 150_000


def check_picture(content: bytes) -> None:
    """Assert that these bytes are a small PNG of the width of a page."""
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content[12:16] == b"IHDR"
    width, height = struct.unpack(">II", content[16:24])
    assert 1000 <= width <= 1400
    assert 500 <= height <= 900
    assert len(content) <= MAX_BYTES
    # A page that is empty is a few kilobytes.
    assert len(content) > 15_000


def test_console_picture_is_a_small_png() -> None:
    check_picture(PICTURE.read_bytes())


def test_console_page_shows_the_picture() -> None:
    assert "](console.png)" in (ROOT / "docs" / "console.md").read_text()
