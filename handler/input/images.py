"""Read images from data URLs, within limits on their number, bytes and pixels."""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence
from typing import Any

from common.value_description import describe_value
from engine import ChatImage, Message
from handler.errors import InvalidRequest

MAX_IMAGES = 16
MAX_IMAGE_BYTES = 32 * 2**20
# An image is decoded to three bytes for each pixel, however small the file is.
MAX_IMAGE_PIXELS = 40_000_000
_MAX_IMAGE_SIDE = 16_384

_DATA_URL = re.compile(r"data:image/[a-z0-9.+-]{1,40};base64,", re.IGNORECASE)
_WEB_URL = re.compile(r"https?://", re.IGNORECASE)
_PNG, _GIF, _JPEG = b"\x89PNG\r\n\x1a\n", (b"GIF87a", b"GIF89a"), b"\xff\xd8\xff"
# The segments of a JPEG that begin a frame: they have the size of the image.
_FRAME_MARKERS = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
# Markers without a length: TEM, RST0 to RST7 and SOI.
_LONE_MARKERS = frozenset({0x01, *range(0xD0, 0xD9)})


def read_image(url: Any, path: str, position: int) -> ChatImage:
    """Return the image of a data URL; `position` is its place in the message's text.

    Raises:
        InvalidRequest: naming the field that is wrong.
    """
    if isinstance(url, str) and _WEB_URL.match(url):
        raise InvalidRequest(
            f"{path} must be a data URL, because the server fetches no images, "
            f"got {describe_value(url)}",
            path,
        )
    match = _DATA_URL.match(url) if isinstance(url, str) else None
    if match is None:
        raise InvalidRequest(
            f"{path} must be a data URL such as data:image/png;base64,…, got {describe_value(url)}",
            path,
        )
    data = url[match.end() :]
    try:
        content = binascii.a2b_base64(data, strict_mode=True)
    except ValueError:
        raise InvalidRequest(f"{path} must have valid base64 after the comma", path) from None
    _check_size(content, path)
    return ChatImage(data, position)


def image_part(url: Any, path: str) -> dict[str, Any]:
    """Return the part of a chat message for a data URL, in OpenAI's form.

    Raises:
        InvalidRequest: naming the field, which is not the one that the chat's reader would name.
    """
    read_image(url, path, 0)
    return {"type": "image_url", "image_url": url}


def join_parts(parts: Sequence[str | dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return the content of a chat message: a text, or an array of parts if there are images.

    `parts` are texts and the results of `image_part`.
    """
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "".join(texts)
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]


def check_images(messages: Sequence[Message], path: str) -> None:
    """Check the images of a request together.

    Raises:
        InvalidRequest: there are too many, or they are too large.
    """
    images = [image for message in messages for image in message.images]
    if len(images) > MAX_IMAGES:
        raise InvalidRequest(
            f"{path} must have at most {MAX_IMAGES} images, got {len(images)}", path
        )
    size_bytes = sum(len(image.data) * 3 // 4 for image in images)
    if size_bytes > MAX_IMAGE_BYTES:
        raise InvalidRequest(
            f"{path} must have at most {MAX_IMAGE_BYTES} bytes of images, got {size_bytes}", path
        )


def _check_size(content: bytes, path: str) -> None:
    try:
        size = _read_size(content)
    except (IndexError, ValueError):
        size = None
    if size is None:
        raise InvalidRequest(f"{path} must be a PNG, JPEG or GIF image", path)
    width, height = size
    if max(size) > _MAX_IMAGE_SIDE or width * height > MAX_IMAGE_PIXELS:
        raise InvalidRequest(
            f"{path} must have at most {MAX_IMAGE_PIXELS} pixels and sides of at most "
            f"{_MAX_IMAGE_SIDE}, got {width} x {height}",
            path,
        )


def _read_size(content: bytes) -> tuple[int, int] | None:
    """Return the width and height in the header of a file; None for another format.

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


def _read_jpeg_size(content: bytes) -> tuple[int, int]:
    index = 2
    while True:
        # Any bytes may stand between two segments; a decoder skips them.
        index = content.index(b"\xff", index)
        while content[index] == 0xFF:
            index += 1
        marker = content[index]
        index += 1
        if marker in _FRAME_MARKERS:
            return _read_integer(content, index + 5, 2), _read_integer(content, index + 3, 2)
        if marker not in _LONE_MARKERS and marker != 0:
            index += max(_read_integer(content, index, 2), 2)


def _read_integer(content: bytes, start: int, size: int) -> int:
    return int.from_bytes(_slice(content, start, size), "big")


def _slice(content: bytes, start: int, size: int) -> bytes:
    part = content[start : start + size]
    if len(part) < size:
        raise ValueError("cut short")
    return part
