"""A rendered chat with images."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from secrets import token_hex

from engine.capabilities import Capabilities
from engine.errors import RequestRejected
from engine.request import Chat, GenerationRequest, Message


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
_EARLIER_LEFT_OUT = "[image left out: this model sees only the last image]"


def leave_out_images(
    request: GenerationRequest, capabilities: Capabilities
) -> tuple[GenerationRequest, tuple[str, ...]]:
    """Return the request with a sentence in the place of each image that the model cannot see.

    These are all images, or all but the last ones of a chat with more than `max_images`. An agent
    sends its whole history with every request, so an error would end the session.
    """
    prompt = request.prompt
    if not isinstance(prompt, Chat) or not prompt.images:
        return request, ()
    count, limit = len(prompt.images), capabilities.max_images
    if capabilities.images:
        if limit is None or count <= limit:
            return request, ()
        left_out, sentence = count - limit, _EARLIER_LEFT_OUT
        warning = (
            f"messages: {left_out} of {count} images were left out, the last is seen: this version "
            f"of the {capabilities.backend} runtime mixes several images"
        )
    else:
        left_out, sentence = count, _LEFT_OUT
        is_rkllm = capabilities.backend == "rkllm"
        lack = "vision encoder (RKLLM_VISION)" if is_rkllm else "projector for images (MMPROJ_PATH)"
        warning = (
            f"messages: images were left out, because {capabilities.model} is loaded without a "
            f"{lack}"
        )
    messages = []
    for message in prompt.messages:
        messages.append(_leave_out_first(message, left_out, sentence))
        left_out = max(left_out - len(message.images), 0)
    return replace(request, prompt=replace(prompt, messages=tuple(messages))), (warning,)


def _leave_out_first(message: Message, count: int, sentence: str) -> Message:
    """Return a message with a sentence in the place of each of its first `count` images."""
    if not message.images or not count:
        return message
    left_out, kept = message.images[:count], message.images[count:]
    content = replace(message, images=left_out).to_template(sentence)["content"]
    added = len(sentence) * len(left_out)
    images = tuple(replace(image, position=image.position + added) for image in kept)
    return replace(message, content=content, images=images)


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
