"""The protocol between the engine and its host process: frames of JSON."""

from __future__ import annotations

from typing import Any

import orjson

from common.frames import FrameDecoder, add_header

# Larger than any prompt within the limit on request bodies.
MAX_FRAME_BYTES = 256 * 1024 * 1024


def encode(message: Any) -> bytes:
    """Return one message as a frame; dataclasses become JSON objects.

    Raises TypeError for values that JSON cannot represent.
    """
    return add_header(orjson.dumps(message, default=_to_tuple))


def build_decoder() -> FrameDecoder:
    """Return a decoder of such frames, for one socket."""
    return FrameDecoder(orjson.loads, MAX_FRAME_BYTES)


def _to_tuple(value: object) -> tuple[object, ...]:
    """Return a named tuple as a plain one, which the encoder knows."""
    if isinstance(value, tuple):
        return tuple(value)
    raise TypeError(f"a {type(value).__name__} cannot be sent")
