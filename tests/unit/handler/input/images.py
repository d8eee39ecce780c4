"""Small image files, built by hand: headers with a size, as far as decoders read them first."""

from __future__ import annotations

import base64
import struct
import zlib


def png(width: int = 2, height: int = 2, colour: tuple[int, int, int] = (255, 0, 0)) -> bytes:
    """Return a complete PNG of one colour."""
    rows = (b"\0" + bytes(colour) * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    )


def png_header(width: int, height: int) -> bytes:
    """Return the beginning of a PNG of any size."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n\0\0\0\r" + header + struct.pack(">I", zlib.crc32(header))


def inflating_png(size: int) -> bytes:
    """Return a PNG of one pixel whose data inflates to so many bytes."""
    data = zlib.compress(bytes(size), 9)
    chunk = struct.pack(">I", len(data)) + b"IDAT" + data
    return png_header(1, 1) + chunk + struct.pack(">I", zlib.crc32(b"IDAT" + data))


def gif_header(width: int, height: int) -> bytes:
    """Return the beginning of a GIF."""
    return b"GIF89a" + struct.pack("<HH", width, height)


def jpeg_header(width: int, height: int, frame: int = 0xC0, before: bytes = b"") -> bytes:
    """Return the beginning of a JPEG, with other segments `before` that of the frame."""
    frame_header = struct.pack(">BBHBHH", 0xFF, frame, 17, 8, height, width)
    return b"\xff\xd8\xff\xe0\0\x04ab" + before + frame_header


def data_url(content: bytes, kind: str = "image/png") -> str:
    """Return the data URL of a file."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
