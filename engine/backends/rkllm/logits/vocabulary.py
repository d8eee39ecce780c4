"""The bytes of each token and the end tokens, which sampling from logits needs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.backends.rkllm.tokenizer import ChatTokenizer
from engine.backends.rkllm.tokenizer_files import GENERATION_CONFIG
from engine.errors import ModelLoadFailed

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "\N{LOWER ONE EIGHTH BLOCK}"


class Vocabulary:
    """A model's tokens, read from its tokenizer files.

    `size` is the highest token id plus 1, `end_tokens` are the ids that end an answer, and
    `special_tokens` are the texts of special tokens by id. Immutable and thread-safe.

    Raises:
        ModelLoadFailed: the tokenizer's decoder is not supported, or no file defines an end token.
    """

    def __init__(self, tokenizer: ChatTokenizer, folder: Path) -> None:
        ids = tokenizer.vocabulary()
        added = tokenizer.added_tokens()
        to_bytes = _piece_decoder(tokenizer.decoder(), folder)
        self._pieces = {
            number: to_bytes(piece) for piece, number in ids.items() if number not in added
        }
        # Special tokens have no bytes, because the runtime omits them from its text too.
        self._pieces |= {
            number: b"" if special else text.encode() for number, (text, special) in added.items()
        }
        self.special_tokens = {number: text for number, (text, special) in added.items() if special}
        self.size = max(self._pieces, default=-1) + 1
        self.end_tokens = tokenizer.end_tokens
        if not self.end_tokens:
            raise ModelLoadFailed(
                f"RKLLM_MODE: which token ends an answer is in neither tokenizer_config.json nor "
                f"{GENERATION_CONFIG} in {folder}"
            )

    def piece(self, token: int) -> bytes:
        """Return a token's bytes, which may end inside a character; none for a special token."""
        return self._pieces.get(token, b"")

    def text(self, token: int) -> str:
        """Return a token's text for reports, also of a special token."""
        return self.special_tokens.get(token) or self.piece(token).decode("utf-8", "replace")


def _piece_decoder(decoder: Any, folder: Path) -> Callable[[str], bytes]:
    """Return a function that converts entries of the vocabulary to bytes."""
    steps = {step["type"] for step in _decoder_steps(decoder)}
    if "ByteLevel" in steps:
        byte_of_char = _byte_level_table()

        def from_characters(piece: str) -> bytes:
            return bytes(byte_of_char[char] for char in piece)

        return from_characters
    if steps & {"Metaspace", "ByteFallback", "Replace"}:

        def from_text(piece: str) -> bytes:
            byte = _BYTE_TOKEN.fullmatch(piece)
            return bytes.fromhex(byte[1]) if byte else piece.replace(_SPACE_MARK, " ").encode()

        return from_text
    raise ModelLoadFailed(
        f"RKLLM_MODE: the tokenizer in {folder} writes its tokens in a way that is not known here "
        f"({', '.join(sorted(steps)) or 'no decoder'})"
    )


def _decoder_steps(decoder: Any) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def _byte_level_table() -> dict[str, int]:
    """Return the byte for each character of a byte-level vocabulary (GPT-2's table).

    A printable byte is represented by its own character, the others by U+0100 and up, in order.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)}
    printable |= set(range(ord("®"), ord("ÿ") + 1))
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }
