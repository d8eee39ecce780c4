"""Recognises a model that generates nothing but padding, as a badly converted one does."""

from __future__ import annotations

from engine.errors import BackendFailed

# Tokens in a row. An answer about a vocabulary may have some.
_MAX_PADDING_TOKENS = 16
_PADDING_START = b"[PAD"


class PaddingCounter:
    """Counts the padding tokens at the end of an answer; used by the thread of the callbacks.

    Boards reported endless `[PAD151935]` (rknn-llm#467, #469).
    """

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def push(self, piece: bytes) -> bool:
        """Count a token's text; return whether there were too many in a row."""
        if piece[:4] != _PADDING_START:
            self._count = 0
            return False
        self._count += 1
        return self._count >= _MAX_PADDING_TOKENS


def padding_error() -> BackendFailed:
    """Return the error of an answer that is nothing but padding."""
    return BackendFailed(
        "the model generates nothing but padding tokens: it is damaged, or was converted for "
        "another version of the runtime"
    )
