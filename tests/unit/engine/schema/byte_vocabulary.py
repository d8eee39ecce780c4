"""A vocabulary in which each byte is a token, for the grammar library."""

from __future__ import annotations


class Bytes:
    """A vocabulary of the 256 bytes and an end token."""

    eos_token_id = 256
    bos_token_id = None
    special_token_ids = (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)
