"""The bytes of each token, and the tokens that end an answer: what sampling here has to know."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.backends.rkllm.prompts import ChatTokenizer
from engine.errors import ModelLoadFailed

_GENERATION = "generation_config.json"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


class Vocabulary:
    """What the runtime would know by itself, read from the files beside the model.

    `size` is one more than the highest token there is; `ends` are the tokens that end an answer,
    and `special` those that are no text, as they are written.
    Only read after it is built; any thread may use it.

    Raises:
        ModelLoadFailed: the tokenizer writes its tokens in no known way, or nothing says which
            token is the end.
    """

    def __init__(self, tokenizer: ChatTokenizer, folder: Path) -> None:
        known = tokenizer.vocabulary()
        added = tokenizer.added_tokens()
        written = _writing(tokenizer.decoder(), folder)
        self._pieces = {
            number: written(piece) for piece, number in known.items() if number not in added
        }
        # As the runtime leaves them out of its text.
        self._pieces |= {
            number: b"" if special else text.encode() for number, (text, special) in added.items()
        }
        self.special = {number: text for number, (text, special) in added.items() if special}
        self.size = max(self._pieces, default=-1) + 1
        self.ends = frozenset(
            token
            for token in (known.get(tokenizer.end_token), *_configured(folder))
            if token is not None
        )
        if not self.ends:
            raise ModelLoadFailed(
                f"RKLLM_MODE: which token ends an answer is in neither tokenizer_config.json nor "
                f"{_GENERATION} in {folder}"
            )

    def piece(self, token: int) -> bytes:
        """Return a token's bytes, which need not be whole characters; none for a special one."""
        return self._pieces.get(token, b"")

    def text(self, token: int) -> str:
        """Return a token as it is told of, special ones as they are written."""
        return self.special.get(token) or self.piece(token).decode("utf-8", "replace")


def _writing(decoder: Any, folder: Path) -> Callable[[str], bytes]:
    """Return how a vocabulary's entries stand for bytes."""
    steps = {step["type"] for step in _steps(decoder)}
    if "ByteLevel" in steps:
        of_char = _byte_level()

        def from_characters(piece: str) -> bytes:
            return bytes(of_char[char] for char in piece)

        return from_characters
    if steps & {"Metaspace", "ByteFallback", "Replace"}:

        def from_text(piece: str) -> bytes:
            byte = _BYTE.fullmatch(piece)
            return bytes.fromhex(byte[1]) if byte else piece.replace(_SPACE, " ").encode()

        return from_text
    raise ModelLoadFailed(
        f"RKLLM_MODE: the tokenizer in {folder} writes its tokens in a way that is not known here "
        f"({', '.join(sorted(steps)) or 'no decoder'})"
    )


def _steps(decoder: Any) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def _byte_level() -> dict[str, int]:
    """Return the byte of each character of a byte-level vocabulary (GPT-2's table).

    What prints stands for itself, the others for what comes after U+0100, in order.
    """
    prints = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)}
    prints |= set(range(ord("®"), ord("ÿ") + 1))
    others = [byte for byte in range(256) if byte not in prints]
    return {chr(byte): byte for byte in prints} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }


def _configured(folder: Path) -> list[int]:
    """Return the end tokens of generation_config.json; several, where turns end otherwise."""
    path = folder / _GENERATION
    if not path.is_file():
        return []
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        ends = config.get("eos_token_id")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelLoadFailed(f"RKLLM_TOKENIZER: {path} cannot be read: {error}") from error
    given = ends if isinstance(ends, list) else [ends]
    return [end for end in given if isinstance(end, int)]
