"""Image files whose data is more than their size allows are recognised before a decoder runs."""

from __future__ import annotations

import io
import struct
import zlib

import pytest
from PIL import Image

from handler.input.image_files import has_excess_data, read_image_size


def png(width: int, height: int, data: bytes, *, colour: int = 2, interlaced: int = 0) -> bytes:
    """Return a PNG with this inflated data, whatever its header says."""
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, interlaced)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(data, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )


def encoded(mode: str, size: tuple[int, int], kind: str, **options: object) -> bytes:
    """Return the file that a library makes of an image."""
    file = io.BytesIO()
    Image.effect_noise(size, 50).convert(mode).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
@pytest.mark.parametrize("size", [(1, 1), (7, 3), (64, 33)])
def test_image_of_an_encoder_has_no_excess(mode: str, size: tuple[int, int]) -> None:
    content = encoded(mode, size, "PNG")
    assert read_image_size(content) == size
    assert not has_excess_data(content, *size)


@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg_of_an_encoder_has_no_excess(progressive: bool) -> None:
    content = encoded("RGB", (64, 33), "JPEG", progressive=progressive)
    assert read_image_size(content) == (64, 33)
    assert not has_excess_data(content, 64, 33)


def test_png_that_inflates_to_more_than_its_pixels_has_excess() -> None:
    # One pixel of three bytes, and the number of its filter.
    assert not has_excess_data(png(1, 1, bytes(4)), 1, 1)
    assert has_excess_data(png(1, 1, bytes(5)), 1, 1)
    assert has_excess_data(png(1, 1, bytes(100_000_000)), 1, 1)
    # Interlaced, a 3 x 3 image has four passes with 1, 1, 2 and 3 pixels, and a row of 3.
    rows = 1 + 3 + 1 + 3 + 2 * (1 + 3) + 1 + 2 * 3 + 1 + 3 * 3
    assert not has_excess_data(png(3, 3, bytes(rows), interlaced=1), 3, 3)


def test_invalid_data_of_a_png_is_an_error() -> None:
    good = png(1, 1, bytes(4))
    with pytest.raises(ValueError, match="header is invalid"):
        has_excess_data(png(1, 1, bytes(4), colour=5), 1, 1)
    with pytest.raises(ValueError, match="cannot be inflated"):
        has_excess_data(good.replace(zlib.compress(bytes(4), 9), b"no zlib data"), 1, 1)
    with pytest.raises(ValueError, match="too many chunks"):
        has_excess_data(good[:33] + b"\0\0\0\0tEXt\0\0\0\0" * 60_000, 1, 1)


def test_jpeg_with_many_scans_has_excess() -> None:
    content = encoded("RGB", (64, 33), "JPEG")
    assert has_excess_data(content + b"\xff\xda" * 200, 64, 33)
    assert has_excess_data(content + b"\xff\xda" * 30, 8_000, 5_000)


@pytest.mark.parametrize(
    "filler", [b"\xff\x00", b"\xff\xff", b"\xff\xe0\x00\x02", b"x", b"\xff\xd0"]
)
def test_jpeg_without_a_frame_is_refused_after_a_bounded_search(filler: bytes) -> None:
    with pytest.raises(ValueError, match=r"there is no frame|too many segments"):
        read_image_size(b"\xff\xd8\xff\xe0\x00\x02" + filler * (20_000_000 // len(filler)))
