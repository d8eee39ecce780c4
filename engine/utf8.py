"""Bytes in any split to text that never shows half a character."""

from __future__ import annotations

import codecs

_incremental = codecs.getincrementaldecoder("utf-8")


class Utf8Decoder:
    """Decodes one stream of UTF-8 that arrives cut at arbitrary bytes (R27).

    Tokenisers with a byte fallback spread one emoji over several tokens, so a piece may end inside
    a character: those bytes wait for the next piece. What is still incomplete when the stream ends
    was cut off by a limit and is dropped, because U+FFFD would be text the model never wrote.
    Bytes that can never become UTF-8 do turn into U+FFFD: that is what the model wrote.
    Owned by the one thread that produces the pieces.
    """

    __slots__ = ("decode",)

    def __init__(self) -> None:
        # The bound method itself: this runs once a token, and a wrapper would double its cost.
        self.decode = _incremental("replace").decode
