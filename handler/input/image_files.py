"""Read the size of an image file, and check that its data is not more than that."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

_PNG, _GIF, _JPEG = b"\x89PNG\r\n\x1a\n", (b"GIF87a", b"GIF89a"), b"\xff\xd8\xff"
# How files of other formats begin, and the brands of the container formats.
_OTHER_STARTS = {
    **{b"BM": "BMP", b"II*\0": "TIFF", b"MM\0*": "TIFF", b"<svg": "SVG", b"<?xml": "SVG"},
    b"%PDF": "PDF",
}
_BRANDS = {b"avif": "AVIF", b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIF"}
# The segments of a JPEG that begin a frame: they have the size of the image.
_FRAME_MARKERS = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
# A marker with a length: not a zero, which no marker has, nor TEM, RST0 to RST7 and SOI.
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")
# An image has some ten segments before its frame, and some fifty with all that a camera adds.
_MAX_SEGMENTS = 1_000
# Bytes that may stand between two segments.
_MAX_GAP_BYTES = 65_536
_SCAN = b"\xff\xda"
# A decoder computes all pixels in each scan of a progressive JPEG, which has about ten.
_MAX_SCANS, _MAX_SCANNED_PIXELS = 100, 800_000_000
# Samples of a pixel by the colour type of a PNG, and the passes of an interlaced one: the first
# column and row, and the steps.
_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_PASSES = (
    *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
    *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
)
_PNG_HEADER_BYTES = 33
_MAX_CHUNKS = 50_000
_INFLATED_AT_ONCE = 2**20


def read_image_size(content: bytes) -> tuple[int, int] | None:
    """Return the width and height in the header of a PNG, JPEG or GIF; None for another file.

    Raises IndexError or ValueError for a file that is cut short.
    """
    if content.startswith(_PNG) and content[12:16] == b"IHDR":
        size = _read_integer(content, 16, 4), _read_integer(content, 20, 4)
    elif content.startswith(_GIF):
        size = (
            int.from_bytes(_slice(content, 6, 2), "little"),
            int.from_bytes(_slice(content, 8, 2), "little"),
        )
    elif content.startswith(_JPEG):
        size = _read_jpeg_size(content)
    else:
        return None
    return size if min(size) > 0 else None


def name_other_format(content: bytes) -> str | None:
    """Return the name of a format that the engines do not decode; None if it is not known."""
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return "WebP"
    if content[4:8] == b"ftyp":
        return _BRANDS.get(content[8:12])
    return next((name for start, name in _OTHER_STARTS.items() if content.startswith(start)), None)


def has_excess_data(content: bytes, width: int, height: int) -> bool:
    """Return whether a decoder would need more memory or time than the size in the header allows.

    Some decoders inflate all data of a PNG before they look at it: 1 MB can become 1 GB.

    Raises ValueError for a PNG whose header or data is invalid.
    """
    if content.startswith(_JPEG):
        scans = content.count(_SCAN)
        return scans > _MAX_SCANS or scans * width * height > _MAX_SCANNED_PIXELS
    if not content.startswith(_PNG) or len(content) < _PNG_HEADER_BYTES:
        return False
    left = _count_png_bytes(content, width, height)
    inflater = zlib.decompressobj()
    try:
        for data in _read_png_data(content):
            while data and not inflater.eof:
                left -= len(inflater.decompress(data, _INFLATED_AT_ONCE))
                if left < 0:
                    return True
                data = inflater.unconsumed_tail
    except zlib.error as error:
        raise ValueError("the data cannot be inflated") from error
    return False


def _count_png_bytes(content: bytes, width: int, height: int) -> int:
    """Return the number of bytes that the data of a PNG of this size has when it is inflated."""
    bits, colour, interlaced = content[24], content[25], content[28]
    if bits not in (1, 2, 4, 8, 16) or colour not in _SAMPLES or interlaced not in (0, 1):
        raise ValueError("the header is invalid")
    bits *= _SAMPLES[colour]
    passes = _PASSES if interlaced else ((0, 0, 1, 1),)
    total = 0
    for column, row, column_step, row_step in passes:
        columns = -(-max(width - column, 0) // column_step)
        rows = -(-max(height - row, 0) // row_step)
        # Each row begins with the number of its filter.
        total += rows * (1 + -(-columns * bits // 8)) if columns else 0
    return total


def _read_png_data(content: bytes) -> Iterator[bytes]:
    """Yield the compressed data of a PNG; a file that is cut short has less of it."""
    index = len(_PNG)
    for _ in range(_MAX_CHUNKS):
        length = int.from_bytes(content[index : index + 4], "big")
        kind = content[index + 4 : index + 8]
        if len(kind) < 4 or kind == b"IEND":
            return
        if kind == b"IDAT":
            yield content[index + 8 : index + 8 + length]
        index += 12 + length
    raise ValueError("there are too many chunks")


def _read_jpeg_size(content: bytes) -> tuple[int, int]:
    index = 2
    for _ in range(_MAX_SEGMENTS):
        # Any bytes may stand between two segments; a decoder skips them.
        match = _MARKER.search(content, index, index + _MAX_GAP_BYTES)
        if match is None:
            raise ValueError("there is no frame")
        index = match.end()
        if content[index - 1] in _FRAME_MARKERS:
            return _read_integer(content, index + 5, 2), _read_integer(content, index + 3, 2)
        index += max(_read_integer(content, index, 2), 2)
    raise ValueError("there are too many segments")


def _read_integer(content: bytes, start: int, size: int) -> int:
    return int.from_bytes(_slice(content, start, size), "big")


def _slice(content: bytes, start: int, size: int) -> bytes:
    part = content[start : start + size]
    if len(part) < size:
        raise ValueError("cut short")
    return part
