"""Check the text of a request."""

from __future__ import annotations

from handler.errors import InvalidRequest


def check_text(text: str, path: str) -> None:
    """Refuse text that is not valid Unicode: a lone surrogate cannot be encoded as UTF-8.

    Raises:
        InvalidRequest: naming the field.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{path} must be Unicode text, got half a surrogate pair at character {error.start}",
            path,
        ) from None
