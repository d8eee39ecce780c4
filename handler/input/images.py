"""Read images in base64, within limits on their number, bytes and pixels."""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence
from typing import Any

from common.value_description import describe_value
from engine import ChatImage, Message
from handler.errors import InvalidRequest
from handler.input.image_files import has_excess_data, name_other_format, read_image_size

MAX_IMAGES = 16
MAX_IMAGE_BYTES = 32 * 2**20
# An image is decoded to three bytes for each pixel, however small the file is.
MAX_IMAGE_PIXELS = 40_000_000
_MAX_IMAGE_SIDE = 16_384

_IMAGE_TYPE = r"image/[a-z0-9.+-]{1,40}"
_MEDIA_TYPE = re.compile(_IMAGE_TYPE, re.IGNORECASE)
_DATA_URL = re.compile(f"data:{_IMAGE_TYPE};base64,", re.IGNORECASE)
_WEB_URL = re.compile(r"https?://", re.IGNORECASE)


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
    data = _join_lines(url[match.end() :])
    _check_data(data, path, "have valid base64 after the comma")
    return ChatImage(data, position)


def read_base64_image(media_type: str, data: str, path: str, position: int) -> ChatImage:
    """Return an image in base64; `position` is its place in the message's text.

    Raises:
        InvalidRequest: naming the field that is wrong.
    """
    if not _MEDIA_TYPE.fullmatch(media_type):
        raise InvalidRequest(
            f"{path} must be an image, with a type such as image/png, "
            f"got {describe_value(media_type)}",
            path,
        )
    data = _join_lines(data)
    _check_data(data, path, "be valid base64")
    return ChatImage(data, position)


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


def _join_lines(data: str) -> str:
    """Return base64 without line breaks, which some encoders add; the engines take none."""
    return data.replace("\r", "").replace("\n", "")


def _check_data(data: str, path: str, rule: str) -> None:
    """Check an image in base64; `rule` is the sentence on what its text must be. Raises
    InvalidRequest."""
    try:
        content = binascii.a2b_base64(data, strict_mode=True)
    except ValueError:
        raise InvalidRequest(f"{path} must {rule}", path) from None
    _check_size(content, path)


def _check_size(content: bytes, path: str) -> None:
    try:
        size = read_image_size(content)
    except (IndexError, ValueError):
        size = None
    if size is None:
        got = f", got {name}: convert it first" if (name := name_other_format(content)) else ""
        raise InvalidRequest(f"{path} must be a PNG, JPEG or GIF image{got}", path)
    width, height = size
    if max(size) > _MAX_IMAGE_SIDE or width * height > MAX_IMAGE_PIXELS:
        raise InvalidRequest(
            f"{path} must have at most {MAX_IMAGE_PIXELS} pixels and sides of at most "
            f"{_MAX_IMAGE_SIDE}, got {width} x {height}",
            path,
        )
    try:
        has_excess = has_excess_data(content, width, height)
    except (IndexError, ValueError) as error:
        raise InvalidRequest(f"{path} must be an image that can be read: {error}", path) from None
    if has_excess:
        raise InvalidRequest(
            f"{path} must have no more data than its {width} x {height} pixels need", path
        )
