"""Decode an image file to the square of pixels that a vision encoder takes."""

from __future__ import annotations

import binascii
from io import BytesIO
from typing import Any

from engine.errors import RequestRejected

_FORMATS = ("PNG", "JPEG", "GIF")
# An image is decoded to up to four bytes for each pixel, however small the file is.
_MAX_PIXELS = 40_000_000
# The colour around an image that is not square, as in the multimodal demo of rknn-llm.
_GREY = (128, 128, 128)


def read_pixels(data: str, size: int) -> Any:
    """Return a file in base64 as an array of `size` rows of `size` RGB pixels of 8 bits.

    The image keeps its proportions, in the middle of a grey square. It is scaled down before it is
    put on the square, because the square of a long and narrow image would take much memory.

    Raises:
        RequestRejected: the file cannot be decoded.
    """
    import numpy as np
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(BytesIO(binascii.a2b_base64(data)), formats=_FORMATS) as file:
            if file.width * file.height > _MAX_PIXELS:
                raise ValueError(f"more than {_MAX_PIXELS} pixels")
            image = ImageOps.exif_transpose(file).convert("RGB")
    except UnidentifiedImageError as error:
        raise RequestRejected(
            "messages: an image cannot be decoded: it is no PNG, JPEG or GIF", param="messages"
        ) from error
    except Exception as error:
        # A damaged file makes Pillow raise errors of many kinds.
        raise RequestRejected(
            f"messages: an image cannot be decoded: {error}", param="messages"
        ) from error
    scale = size / max(image.size)
    width, height = (max(round(side * scale), 1) for side in image.size)
    square = Image.new("RGB", (size, size), _GREY)
    scaled = image.resize((width, height), Image.Resampling.BILINEAR)
    square.paste(scaled, ((size - width) // 2, (size - height) // 2))
    return np.asarray(square, np.uint8)
