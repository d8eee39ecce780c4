"""Prompts with images: the order of texts and images, and texts that resemble an image."""

from __future__ import annotations

from unittest.mock import ANY

import pytest

from engine.capabilities import Capabilities
from engine.errors import RequestRejected
from engine.prompts.image_prompt import ImagePrompt, leave_out_images, render_images
from engine.request import Chat, ChatImage, GenerationRequest, Message

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


@pytest.mark.parametrize(
    ("backend", "setting"), [("llamacpp", "MMPROJ_PATH"), ("rkllm", "RKLLM_VISION")]
)
def test_images_are_left_out_of_a_model_that_reads_only_text(backend: str, setting: str) -> None:
    blind = Capabilities(backend=backend, model="m", context_length=1, chat_template=True)
    request, [warning] = leave_out_images(GenerationRequest(prompt=CHAT), blind)
    assert isinstance(request.prompt, Chat)
    assert request.prompt.images == ()
    sentence = "[image left out: this model reads only text]"
    assert [message.content for message in request.prompt.messages] == [
        f"{sentence}one{sentence} two",
        f"three{sentence}",
    ]
    assert setting in warning
    seeing = Capabilities(backend=backend, model="m", context_length=1, images=True)
    assert leave_out_images(GenerationRequest(prompt=CHAT), seeing) == (
        GenerationRequest(prompt=CHAT, request_id=ANY),
        (),
    )


@pytest.mark.parametrize(
    ("limit", "contents", "left"),
    [
        (1, ["{0}one{0} two", "three"], ["C"]),
        (2, ["{0}one two", "three"], ["B", "C"]),
        (3, ["one two", "three"], ["A", "B", "C"]),
        (None, ["one two", "three"], ["A", "B", "C"]),
    ],
)
def test_last_images_are_kept_up_to_the_limit(
    limit: int | None, contents: list[str], left: list[str]
) -> None:
    capabilities = Capabilities(
        backend="rkllm", model="m", context_length=1, images=True, max_images=limit
    )
    request, warnings = leave_out_images(GenerationRequest(prompt=CHAT), capabilities)
    assert isinstance(request.prompt, Chat)
    sentence = "[image left out: this model sees only the last image]"
    assert [each.content for each in request.prompt.messages] == [
        text.format(sentence) for text in contents
    ]
    assert [image.data for image in request.prompt.images] == left
    # Each remaining image has its place in the text.
    texts = "".join(each.to_template("@")["content"] for each in request.prompt.messages)
    expected = "@one@ two" + "three@"
    for image in {"A", "B"} - set(left):
        assert image not in left
        expected = expected.replace("@", sentence, 1)
    assert texts == expected
    assert len(warnings) == (len(left) < 3)
