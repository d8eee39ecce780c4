"""A rendered chat with images."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from secrets import token_hex

from engine.capabilities import Capabilities
from engine.errors import RequestRejected
from engine.request import Chat, GenerationRequest


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """The texts of a prompt, and the images between them: one less than the texts.

    Each image is a file in base64.
    """

    texts: tuple[str, ...]
    images: tuple[str, ...]

    @property
    def plain_text(self) -> str:
        """The prompt without its images."""
        return "".join(self.texts)

    @property
    def cache_key(self) -> str:
        """The prompt with a hash in the place of each image, so that other images differ."""
        hashes = [hashlib.sha256(image.encode()).hexdigest() for image in self.images]
        return "".join(chain(*zip(self.texts, [*hashes, ""], strict=True)))

    def join(self, marker: str) -> str:
        """Return the prompt with a marker in the place of each image.

        Raises:
            RequestRejected: a text contains the marker.
        """
        if marker and any(marker in text for text in self.texts):
            raise RequestRejected("messages must not contain the mark of images", param="messages")
        return marker.join(self.texts)


_LEFT_OUT = "[image left out: this model reads only text]"


def leave_out_images(
    request: GenerationRequest, capabilities: Capabilities
) -> tuple[GenerationRequest, tuple[str, ...]]:
    """Return the request with a sentence in the place of each image if the model sees none.

    An agent sends its whole history with every request, so an error would end the session.
    """
    prompt = request.prompt
    if capabilities.images or not isinstance(prompt, Chat) or not prompt.images:
        return request, ()
    messages = tuple(
        replace(message, content=message.to_template(_LEFT_OUT)["content"], images=())
        if message.images
        else message
        for message in prompt.messages
    )
    is_rkllm = capabilities.backend == "rkllm"
    lacks = "vision encoder (RKLLM_VISION)" if is_rkllm else "projector for images (MMPROJ_PATH)"
    warning = (
        f"messages: images were left out, because {capabilities.model} is loaded without a {lacks}"
    )
    return replace(request, prompt=replace(prompt, messages=messages)), (warning,)


def render_images(chat: Chat, render: Callable[[str], str]) -> ImagePrompt:
    """Render a chat with images; `render` renders it with a text in the place of each image.

    The text is random, so that no message can contain it.

    Raises:
        RequestRejected: the template leaves out an image.
    """
    marker = f"[image {token_hex(16)}]"
    texts = tuple(render(marker).split(marker))
    images = tuple([image.data for image in chat.images])
    if len(texts) != len(images) + 1:
        raise RequestRejected(
            f"messages: the model's chat template takes {len(texts) - 1} of the {len(images)} "
            "images",
            param="messages",
        )
    return ImagePrompt(texts, images)
