from __future__ import annotations

from io import BytesIO

import pytest
from PIL import Image

from engine.doctor.answer_checks import build_picture, find_cosine


def test_build_picture_is_a_png_of_one_colour() -> None:
    picture = Image.open(BytesIO(build_picture(b"\xff\0\0")))
    assert (picture.format, picture.size) == ("PNG", (28, 28))
    assert picture.getcolors() == [(28 * 28, (255, 0, 0))]


@pytest.mark.parametrize(
    ("other", "cosine"),
    [([2.0, 0.0], 1.0), ([0.0, 3.0], 0.0), ([-1.0, 0.0], -1.0), ([0.0, 0.0], 1)],
)
def test_find_cosine_of_two_vectors(other: list[float], cosine: float) -> None:
    assert find_cosine([1.0, 0.0], other) == cosine
