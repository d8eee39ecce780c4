"""Collect the texts and images of one message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine import ChatImage
from handler.errors import InvalidRequest
from handler.input.images import read_base64_image, read_image
from handler.input.text import check_text

_MAX_TYPE_CHARS = 40


def describe_type(kind: str) -> str:
    """Return the type of a part for a sentence about it."""
    return kind if kind.isidentifier() and len(kind) <= _MAX_TYPE_CHARS else "part"


class MessageContent:
    """The text of a message, and its images with their places in the text.

    Every method takes the client's path of the part, and raises InvalidRequest with it. Owned by
    the function that reads the message.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._chars = 0
        self._images: list[ChatImage] = []
        # Whether the last part was a text, and so a further one starts on a line of its own.
        self._ends_with_text_part = False
        # About parts that were left out.
        self.warnings: list[str] = []

    def add_text(self, text: str, path: str) -> None:
        """Add a text after the parts so far."""
        check_text(text, path)
        self._texts.append(text)
        self._chars += len(text)

    def add_text_part(self, text: str, path: str) -> None:
        """Add a text part of a message in OpenAI's form, on a new line after another one.

        That is how vLLM joins them; without it, the last word of a part runs into the next part.
        """
        self.add_text(f"\n{text}" if self._ends_with_text_part else text, path)
        self._ends_with_text_part = True

    def leave_out(self, what: str, reason: str, path: str) -> None:
        """Put a sentence in the place of a part that the model cannot be given, and a warning.

        Agents repeat their history in every request, so an error would end the session.
        """
        self.add_text(f"[{what} left out: {reason}]", path)
        self.warnings.append(f"{path} was left out: {reason}")

    def add_image_if_readable(self, add: Callable[[], None], path: str) -> None:
        """Run `add`, which adds an image of a tool; leave the image out if it cannot be read."""
        try:
            add()
        except InvalidRequest as error:
            self.leave_out("image", error.message.removeprefix(f"{error.param} "), path)

    def add_image(self, url: Any, path: str) -> None:
        """Add the image of a data URL."""
        self._images.append(read_image(url, path, self._chars))
        self._ends_with_text_part = False

    def add_base64_image(self, media_type: str, data: str, path: str) -> None:
        """Add an image whose data is base64 without a URL around it."""
        self._images.append(read_base64_image(media_type, data, path, self._chars))
        self._ends_with_text_part = False

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
