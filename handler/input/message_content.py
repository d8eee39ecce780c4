"""Collect the texts and images of one message."""

from __future__ import annotations

from typing import Any

from engine import ChatImage
from handler.input.images import read_base64_image, read_image
from handler.input.text import check_text


class MessageContent:
    """The text of a message, and its images with their places in the text.

    Every method takes the client's path of the part, and raises InvalidRequest with it. Owned by
    the function that reads the message.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._chars = 0
        self._images: list[ChatImage] = []

    def add_text(self, text: str, path: str) -> None:
        """Add a text after the parts so far."""
        check_text(text, path)
        self._texts.append(text)
        self._chars += len(text)

    def add_image(self, url: Any, path: str) -> None:
        """Add the image of a data URL."""
        self._images.append(read_image(url, path, self._chars))

    def add_base64_image(self, media_type: str, data: str, path: str) -> None:
        """Add an image whose data is base64 without a URL around it."""
        self._images.append(read_base64_image(media_type, data, path, self._chars))

    @property
    def is_empty(self) -> bool:
        """Whether there is neither a text nor an image."""
        return not self._texts and not self._images

    @property
    def text(self) -> str:
        """All texts, joined."""
        return "".join(self._texts)

    @property
    def images(self) -> tuple[ChatImage, ...]:
        """All images, in their order."""
        return tuple(self._images)
