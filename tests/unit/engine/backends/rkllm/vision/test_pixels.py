"""The pixels of images: their colours, proportions and orientation, and damaged files."""

from __future__ import annotations

import base64
from io import BytesIO
from typing import Any

import pytest
from PIL import Image

from engine.backends.rkllm.vision import pixels
from engine.backends.rkllm.vision.pixels import read_pixels
from engine.errors import RequestRejected

RED, GREY = (255, 0, 0), (128, 128, 128)


def encode(image: Image.Image, form: str = "PNG", **options: Any) -> str:
    file = BytesIO()
    image.save(file, form, **options)
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize("size", [(40, 20), (8, 4)])
def test_image_is_scaled_to_the_middle_of_a_grey_square(size: tuple[int, int]) -> None:
    square = read_pixels(encode(Image.new("RGB", size, RED)), 20)
    assert (square.shape, str(square.dtype)) == ((20, 20, 3), "uint8")
    assert {tuple(row.tolist()) for row in square[:5].reshape(-1, 3)} == {GREY}
    assert {tuple(row.tolist()) for row in square[5:15].reshape(-1, 3)} == {RED}
    assert {tuple(row.tolist()) for row in square[15:].reshape(-1, 3)} == {GREY}


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1", "I;16", "CMYK"])
def test_every_kind_of_image_becomes_rgb(mode: str) -> None:
    form = "JPEG" if mode == "CMYK" else "PNG"
    assert read_pixels(encode(Image.new(mode, (3, 3)), form), 6).shape == (6, 6, 3)


def test_first_image_of_an_animation_is_used() -> None:
    frames = [Image.new("RGB", (4, 4), color) for color in (RED, GREY)]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert tuple(read_pixels(data, 4)[0, 0].tolist()) == RED


def test_orientation_of_a_photo_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.new("RGB", (40, 20), RED)
    square = read_pixels(encode(image, "JPEG", exif=exif, quality=100), 20)
    assert tuple(square[10, 0].tolist()) == GREY
    assert tuple(square[0, 10].tolist()) != GREY


def test_narrow_image_keeps_a_pixel() -> None:
    square = read_pixels(encode(Image.new("RGB", (3000, 1), RED)), 20)
    assert tuple(square[9, 0].tolist()) == RED or tuple(square[10, 0].tolist()) == RED


PNG = encode(Image.effect_noise((50, 50), 9))


@pytest.mark.parametrize(
    "data",
    [
        "",
        "!",
        base64.b64encode(b"GIF89a").decode(),
        PNG[:200],
        encode(Image.new("L", (2, 2)), "BMP"),
    ],
)
def test_damaged_image_is_refused_in_one_sentence(data: str) -> None:
    with pytest.raises(RequestRejected, match=r"^messages: an image cannot be decoded: ") as caught:
        read_pixels(data, 20)
    assert caught.value.details["param"] == "messages"
    assert "0x" not in caught.value.message
    assert "\n" not in caught.value.message


def test_image_with_more_than_max_pixels_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "_MAX_PIXELS", 2499)
    with pytest.raises(RequestRejected, match="more than 2499 pixels"):
        read_pixels(PNG, 20)
