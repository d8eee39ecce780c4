"""The pictures of the console in the documentation."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ("console", "handler")
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


@pytest.mark.parametrize("name", PICTURES)
def test_picture_is_a_small_png_on_its_page(name: str) -> None:
    check_picture((ROOT / "docs" / f"{name}.png").read_bytes())
    assert f"]({name}.png)" in (ROOT / "docs" / f"{name}.md").read_text()
