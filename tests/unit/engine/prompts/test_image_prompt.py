"""Prompts with images: the order of texts and images, and texts that look like an image."""

from __future__ import annotations

import pytest

from engine.errors import RequestRejected
from engine.prompts.image_prompt import ImagePrompt, render_images
from engine.request import Chat, ChatImage, Message

CHAT = Chat(
    (
        Message("user", "one two", images=(ChatImage("A", 0), ChatImage("B", 3))),
        Message("user", "three", images=(ChatImage("C", 5),)),
    )
)


def render(marker: str) -> str:
    return "".join(f"<{each.to_template(marker)['content']}>" for each in CHAT.messages)


def test_images_are_between_the_texts() -> None:
    prompt = render_images(CHAT, render)
    assert prompt == ImagePrompt(("<", "one", " two><three", ">"), ("A", "B", "C"))
    assert prompt.plain_text == "<one two><three>"
    assert prompt.join("M") == "<MoneM two><threeM>"


def test_cache_key_differs_for_other_images_and_orders() -> None:
    texts = ("a", "b", "c")
    keys = {ImagePrompt(texts, images).cache_key for images in ("XY", "YX", "XX")}  # type: ignore[arg-type]
    assert len(keys) == 3
    longer = ImagePrompt((*texts, "d"), ("X", "Y", "Z")).cache_key
    assert longer.startswith(ImagePrompt(texts, ("X", "Y")).cache_key)


def test_text_with_the_marker_is_refused() -> None:
    prompt = render_images(CHAT, render)
    with pytest.raises(RequestRejected, match="must not contain the mark of images"):
        prompt.join("thr")


@pytest.mark.parametrize("copies", [0, 2])
def test_template_must_render_each_image_once(copies: int) -> None:
    with pytest.raises(RequestRejected, match=rf"takes {3 * copies} of the 3 images"):
        render_images(CHAT, lambda marker: render(marker) * copies)
