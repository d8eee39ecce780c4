"""Frames between a journal and its store process: `marshal` values.

`marshal` is the fastest format for bytes. It is safe here, because both processes run the same
interpreter and no other process has the socket.
"""

from __future__ import annotations

import marshal
from typing import Any

from common.frames import FrameDecoder, add_header

# Larger than any batch.
MAX_FRAME_BYTES = 1_000_000_000


def encode(message: Any) -> bytes:
    """Encode a message of tuples, lists, strings, numbers and bytes as a frame."""
    return add_header(marshal.dumps(message))


def build_decoder() -> FrameDecoder:
    """Return a decoder of such frames, for one socket."""
    return FrameDecoder(marshal.loads, MAX_FRAME_BYTES)
