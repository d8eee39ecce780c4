"""Read images of messages: data URLs, formats and limits."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from engine import ChatImage
from engine.request import Chat, Message
from handler.errors import InvalidRequest
from handler.input import images
from handler.input.messages import read_messages
from tests.unit.handler.input.images import data_url, gif_header, jpeg_header, png, png_header

RED = data_url(png())
FORMATS = "url must be a PNG, JPEG or GIF image"
PIXELS = "url must have at most 40000000 pixels and sides of at most 16384, got "


def image_part(url: str = RED) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def test_images_have_their_place_in_the_text() -> None:
    parts = (image_part(), text_part("one"), {"type": "image_url", "image_url": RED})
    data = base64.b64encode(png()).decode()
    [message] = read_messages([user(*parts, text_part(" two"))]).messages
    assert message == Message(
        "user", "one two", images=(ChatImage(data, 0), ChatImage(data, len("one")))
    )


@pytest.mark.parametrize(
    "content",
    [
        png_header(16_384, 1),
        gif_header(8000, 5000),
        jpeg_header(8000, 5000),
        jpeg_header(10, 10, frame=0xC2, before=b"\xff\xfe\0\x08\xff\xc0aaaa"),
        jpeg_header(10, 10, before=b"stray\xff\xff\xdb\0\x02"),
    ],
)
@pytest.mark.parametrize("kind", ["image/png", "image/jpeg", "IMAGE/GIF"])
def test_format_is_read_from_the_file(content: bytes, kind: str) -> None:
    assert images.read_image(data_url(content, kind), "url", 3).position == 3


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (5, "url must be a data URL such as data:image/png;base64,…, got 5"),
        (None, "url must be a data URL such as data:image/png;base64,…, got null"),
        (
            "https://example.org/a.png",
            "url must be a data URL, because the server fetches no images, "
            'got "https://example.org/a.png"',
        ),
        (
            "HTTP://127.0.0.1/",
            'url must be a data URL, because the server fetches no images, got "HTTP://127.0.0.1/"',
        ),
        (
            "file:///etc/passwd",
            'url must be a data URL such as data:image/png;base64,…, got "file:///etc/passwd"',
        ),
        ("data:image/png;base64,a", "url must have valid base64 after the comma"),
        ("data:image/png;base64,iVBORw0KG go=", "url must have valid base64 after the comma"),
        ("data:image/png;base64,é", "url must have valid base64 after the comma"),
        (data_url(b""), FORMATS),
        (data_url(b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"), f"{FORMATS}, got WebP: convert it first"),
        (data_url(b"\0\0\0 ftypavif", "image/avif"), f"{FORMATS}, got AVIF: convert it first"),
        (data_url(b"BM\0\0", "image/bmp"), f"{FORMATS}, got BMP: convert it first"),
        (data_url(b"<svg/>", "image/svg+xml"), f"{FORMATS}, got SVG: convert it first"),
        (data_url(png_header(1, 1)[:20]), FORMATS),
        (data_url(png_header(0, 1)), FORMATS),
        (data_url(jpeg_header(1, 1)[:-1]), FORMATS),
        (data_url(jpeg_header(1, 1)[:9]), FORMATS),
        (data_url(b"\xff\xd8\xff"), FORMATS),
        (data_url(png_header(8001, 5000)), f"{PIXELS}8001 x 5000"),
        (data_url(gif_header(16_385, 1)), f"{PIXELS}16385 x 1"),
        (data_url(jpeg_header(65_535, 65_535)), f"{PIXELS}65535 x 65535"),
    ],
)
def test_other_images_are_refused_in_one_sentence(url: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        images.read_image(url, "url", 0)
    assert (raised.value.message, raised.value.param) == (message, "url")


def test_number_and_bytes_of_images_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [user(*[image_part()] * 8), user(*[image_part()] * 8)]
    assert len(Chat(read_messages(messages).messages).images) == images.MAX_IMAGES
    with pytest.raises(InvalidRequest, match=r"^messages must have at most 16 images, got 17$"):
        read_messages([*messages, user(image_part())])
    monkeypatch.setattr(images, "MAX_IMAGE_BYTES", 100)
    with pytest.raises(InvalidRequest, match=r"^messages must have at most 100 bytes of images"):
        read_messages([user(image_part(), image_part())])
